module github.com/httpthrottle/throttle/bench

go 1.26.0

require (
	github.com/aws/aws-sdk-go-v2 v1.47.6
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/gofri/go-github-ratelimit/v2 v2.0.2
	github.com/httpthrottle/throttle v0.0.0
	github.com/juju/ratelimit v1.0.2
	github.com/sethvargo/go-limiter v0.7.1
	github.com/throttled/throttled/v2 v2.15.0
	go.uber.org/ratelimit v0.3.1
	golang.org/x/sync v0.24.0
	golang.org/x/time v0.16.0
	k8s.io/client-go v0.37.2
	resty.dev/v3 v3.0.0-rc.4
)

require (
	github.com/aws/smithy-go v1.28.8 // indirect
	github.com/benbjohnson/clock v1.3.0 // indirect
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/influxdata/tdigest v0.0.1 // indirect
	golang.org/x/exp v0.0.0-20260824195058-e88cd73687aa // indirect
	golang.org/x/net v0.59.0 // indirect
	gonum.org/v1/gonum v0.16.0 // indirect
	k8s.io/utils v0.0.0-20260626114624-be93311217bd // indirect
)

replace github.com/httpthrottle/throttle => ../
