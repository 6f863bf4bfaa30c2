package tests

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
)

// A server that counts by the model in the body of a request is found to do so, however its host is written.
func TestTheHostOfAServerThatCountsByModelMayBeWrittenInAnyWay(t *testing.T) {
	for _, url := range []string{"http://api.example.com/v1", "http://API.example.com:80/v1"} {
		synctest.Test(t, func(t *testing.T) {
			const window = 20 * time.Second
			limits, used, end := map[string]int{"large": 100, "small": 10}, map[string]int{}, time.Now().Add(window)
			tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(req.Body)
				time.Sleep(50 * time.Millisecond)
				for time.Now().After(end) {
					used, end = map[string]int{}, end.Add(window)
				}
				model := strings.Split(string(body), `"`)[3]
				used[model]++
				left, status := limits[model]-used[model], http.StatusOK
				if left < 0 {
					left, status = 0, http.StatusTooManyRequests
				}
				return &http.Response{StatusCode: status, Body: http.NoBody, Request: req, Header: http.Header{
					"X-Ratelimit-Limit": {strconv.Itoa(limits[model])}, "X-Ratelimit-Remaining": {strconv.Itoa(left)},
					"X-Ratelimit-Reset": {strconv.Itoa(int(time.Until(end).Seconds() + 1))}}}, nil
			}))
			require.NoError(t, err)
			for i := range 2000 {
				model := "large"
				if i%5 == 0 {
					model = "small"
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"model":"`+model+`"}`))
				require.NoError(t, err)
				req.Header.Set("Content-Type", "application/json")
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, resp.StatusCode, "%s: request %d, of the %s model", url, i, model)
			}
		})
	}
}
