package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// throttled is the whole setup. A query is charged what it costs at most, and SettleJSON gives back what it did not
// need. One that costs more than can ever be there is refused, and never sent.
//
// The API counts a query when it arrives, a little later than we do, and one may be delayed on the way for longer than
// the next. So we hold fewer points than it does, by those that return in that time.
//
// The preset knows that an answer with status 200 may be a refusal, if others use the same points.
func throttled(base http.RoundTripper, margin time.Duration) (http.RoundTripper, error) {
	return throttle.New(base, throttle.WithServerHints(headers.Shopify), throttle.WithLimit(
		throttle.TokenBucket(restoreRate, time.Second, throttle.Burst(held(margin)), throttle.Name("points"),
			throttle.Cost(estimate), throttle.SettleJSON("extensions.cost.actualQueryCost")),
	))
}

func held(margin time.Duration) int64 {
	return maximumAvailable - int64(margin)*restoreRate/int64(time.Second)
}

// estimate is what a request may cost at most: of each list as many as it asks for by "first: N". It reads a copy of the
// body, which http.NewRequest provides for redirects.
func estimate(r *http.Request) int64 {
	var asked struct{ Query string }
	if r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			defer body.Close()
			_ = json.NewDecoder(body).Decode(&asked) // without a query it is a request like any other, and costs 1
		}
	}
	return parse(asked.Query).most()
}

// An answer is the outcome of a query.
type answer struct {
	query             string
	waited            time.Duration
	estimated, actual int64
	code              string              // of an error of the API
	refused           *throttle.Rejection // it was not sent
}

// ask sends a query and reads its cost in the answer.
func ask(ctx context.Context, client *http.Client, url, query string) (a answer, err error) {
	a.query, a.estimated = query, parse(query).most()
	body, err := json.Marshal(map[string]string{"query": query})
	if err != nil {
		return a, err
	}
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/graphql", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	resp, err := client.Do(req)
	if errors.As(err, &a.refused) && a.refused.Reason == throttle.ReasonCost {
		return a, nil
	}
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, errors.New(resp.Status)
	}
	var said struct {
		Errors     []struct{ Extensions struct{ Code string } }
		Extensions struct {
			Cost struct{ ActualQueryCost int64 }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		return a, err
	}
	if len(said.Errors) > 0 {
		a.code = said.Errors[0].Extensions.Code
	}
	a.waited = receipt.Waited()
	a.actual = said.Extensions.Cost.ActualQueryCost
	return a, nil
}

var queries = [...]string{
	"{ products(first: 40) { nodes { title variants(first: 10) { nodes { sku } } } } }",
	"{ orders(first: 60) { nodes { name lineItems(first: 5) { nodes { title quantity } } } } }",
	`{ customers(first: 20, query: "tag:new") { nodes { email } } }`,
	"{ orders(first: 30) { nodes { lineItems(first: 8) { nodes { discounts(first: 2) { nodes { amount } } } } } } }",
	"{ products(first: 100) { nodes { variants(first: 25) { nodes { prices(first: 10) { nodes { amount } } } } } } }",
	"{ customers(first: 25) { nodes { addresses(first: 3) { nodes { city } } orders(first: 10) { nodes { name } } } } }",
	"{ products(first: 8) { nodes { images(first: 50) { nodes { url } } } } }",
	"{ collections(first: 12) { nodes { products(first: 12) { nodes { images(first: 3) { nodes { url } } } } } } }",
}
