// Dynamodb reads with the AWS SDK over an exhausted limit, and shows what the SDK does with a rejection: as a plain
// 429, as an error, and in the shape of DynamoDB's own throttling errors, which the SDK recognizes and retries.
//
//	go run ./examples/apps/sdk/dynamodb
//
// The API is local.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/shape"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Dynamodb reads with the AWS SDK over an exhausted limit, and shows what the SDK
does with a rejection: as a plain 429, as an error, and in the shape of
DynamoDB's own throttling errors, which the SDK recognizes and retries.`

func main() {
	example.Main(example.WithoutFlags(shows, run))
}

func run(ctx context.Context, out io.Writer, opts ...throttletest.Option) error {
	fmt.Fprintf(out, "A read right after the one that took the only token:\n\n%-36s %-22s %5s %7s\n", "", "the SDK returns", "tries", "time")
	waited, err := read(ctx, out, "a token a second, it waits", time.Second, opts)
	if err != nil {
		return err
	}
	failFast := throttle.WithFailFast()
	if _, err = read(ctx, out, "a token an hour, a plain 429", time.Hour, opts, failFast); err != nil {
		return err
	}
	if _, err = read(ctx, out, "a token an hour, an error", time.Hour, opts, failFast, throttle.WithRejectionError()); err != nil {
		return err
	}
	shaped, err := read(ctx, out, "a token an hour, as DynamoDB sends", time.Hour, opts, failFast, throttle.WithRejectionResponse(shape.AWSJSON))
	if err != nil {
		return err
	}
	if waited != "the item" || shaped != "ThrottlingException" {
		return fmt.Errorf("a read that waits returned %s, and a shaped rejection %s", waited, shaped)
	}
	fmt.Fprintln(out, "\nLet requests wait. Where they must not, shape the rejection: the SDK recognizes\nit only then.")
	return nil
}

// read makes two calls, and returns what became of the second one.
func read(ctx context.Context, out io.Writer, name string, interval time.Duration, server []throttletest.Option, opts ...throttle.Option) (string, error) {
	api, err := throttletest.New(append(server, throttletest.WithHandler(http.HandlerFunc(item)))...)
	if err != nil {
		return "", err
	}
	defer api.Close()
	transport, err := throttle.New(api.Transport(), append(opts, throttle.WithLimit(throttle.Pace(1, interval)))...)
	if err != nil {
		return "", err
	}
	client := dynamodb.New(dynamodb.Options{
		HTTPClient:   &http.Client{Transport: transport},
		BaseEndpoint: aws.String(api.URL), Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
	input := &dynamodb.GetItemInput{
		TableName: aws.String("table"), Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "1"}},
	}
	if _, err := client.GetItem(ctx, input); err != nil {
		return "", err
	}
	before, start := transport.Stats(), time.Now()
	_, err = client.GetItem(ctx, input)
	took, after := time.Since(start), transport.Stats()
	result := kindOf(err)
	tries := after.Granted + after.Rejected.Total() - before.Granted - before.Rejected.Total()
	fmt.Fprintf(out, "%-36s %-22s %5d %6.1fs\n", name, result, tries, took.Seconds())
	return result, nil
}

// kindOf distinguishes the errors that matter here.
func kindOf(err error) string {
	if err == nil {
		return "the item"
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	if errors.Is(err, throttle.ErrThrottled) {
		return "throttle.ErrThrottled"
	}
	return err.Error()
}

// item is the API.
func item(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_, _ = io.WriteString(w, "{}")
}
