// Budget spends a day's money on a language model and stops when it is spent: each call is charged what it may cost at most,
// in micro-dollars, and gets back what it did not use.
//
//	go run ./examples/budget
//	go run ./examples/budget -dollars 0.50
//
// The API is local. Each response reports how many tokens the call used.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Budget spends a day's money on a language model and stops when it is spent: each
call is charged what it may cost at most, in micro-dollars, and gets back what
it did not use.`

func main() { example.Main(run) }

const (
	inputPrice  = 3  // micro-dollars for a token of the prompt
	outputPrice = 15 // and for one of the answer
	calls       = 60
	warnAt      = 0.8 // of the budget
)

// money is an amount in micro-dollars.
type money int64

func (m money) String() string { return fmt.Sprintf("$%.4f", float64(m)/1e6) }

// chat is a request; its cost is known only afterwards.
type chat struct {
	Prompt    int64 `json:"prompt_tokens"`
	MaxTokens int64 `json:"max_tokens"`
}

// most returns what a call can cost at most.
func (c chat) most() money { return money(c.Prompt*inputPrice + c.MaxTokens*outputPrice) }

// usage is what the API says that a call used.
type usage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

func (u usage) cost() money { return money(u.Input*inputPrice + u.Output*outputPrice) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := example.NewFlags(shows)
	var dollars float64
	flags.Float64Var(&dollars, "dollars", 1, "budget of a day (UTC)")
	if err := flags.Parse(args, out); err != nil {
		return example.Usage(err)
	}
	if !(dollars >= 0.1 && dollars <= 1e6) {
		return example.Usage(fmt.Errorf("-dollars %v: want 0.1 to 1e6", dollars))
	}
	api, err := throttletest.New(throttletest.WithHandler(http.HandlerFunc(model)))
	if err != nil {
		return err
	}
	defer api.Close()
	return spend(ctx, money(dollars*1e6), api, out)
}

// spend makes all calls that the budget pays for.
func spend(ctx context.Context, budget money, api *throttletest.Server, out io.Writer) error {
	transport, err := throttle.New(api.Transport(), throttle.WithFailFast(), throttle.WithRejectionError(),
		throttle.WithLimit(throttle.FixedWindow(int64(budget), 24*time.Hour, throttle.Name("budget"))))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	var spent money
	var made, rejected int
	warned := false
	fmt.Fprintf(out, "A budget of %v a day.\n\n%4s %12s %12s %12s\n", budget, "call", "at most", "cost", "left")
	for i := range calls {
		c := chat{Prompt: 200 + int64(i*37%500), MaxTokens: 1000 + int64(i*53%9)*500}
		cost, err := ask(ctx, client, api.URL, c)
		if rejection, ok := errors.AsType[*throttle.Rejection](err); ok {
			if rejected++; rejected == 1 {
				fmt.Fprintf(out, "\nRejected: call %d may cost %v, and %v is left.\nThe next budget begins in %v.\n",
					i+1, money(rejection.Cost), left(transport), rejection.Wait.Round(time.Minute))
			}
			continue
		}
		if err != nil {
			return err
		}
		made++
		spent += cost
		if made%6 == 1 {
			fmt.Fprintf(out, "%4d %12v %12v %12v\n", i+1, c.most(), cost, left(transport))
		}
		if used := used(transport); !warned && used >= warnAt {
			warned = true
			fmt.Fprintf(out, "\nWarning: %.0f %% of the budget is spent after %d calls.\n\n", 100*used, made)
		}
	}
	if spent > budget {
		return fmt.Errorf("spent %v of a budget of %v", spent, budget)
	}
	fmt.Fprintln(out)
	example.Verdict(out, true, "%d calls cost %v of %v; %d more were rejected, and cost nothing.", made, spent, budget, rejected)
	return nil
}

// left returns what the budget still pays for: it is the only limit.
func left(transport *throttle.Transport) money {
	return money(transport.Limiter().Limits()[0].Tokens)
}

// used returns which part of the budget is spent.
func used(transport *throttle.Transport) float64 {
	budget := transport.Limiter().Limits()[0]
	return 1 - budget.Tokens/budget.Capacity
}

// ask makes a call. It is charged the most that it can cost, and then what it did.
func ask(ctx context.Context, client *http.Client, url string, c chat) (money, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	ctx, receipt := throttle.ContextWithReceipt(throttle.ContextWithCost(ctx, int64(c.most()), "budget"))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the model says %s", resp.Status)
	}
	var answer struct{ Usage usage }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err // it stays charged the most, because nothing else is known
	}
	cost := answer.Usage.cost()
	return cost, receipt.Settle("budget", int64(cost))
}

// model is the API: an answer takes a third of the tokens that it may.
func model(w http.ResponseWriter, r *http.Request) {
	var c chat
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]usage{"usage": {Input: c.Prompt, Output: c.MaxTokens / 3}})
}
