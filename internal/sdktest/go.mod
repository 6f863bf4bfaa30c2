module github.com/httpthrottle/throttle/internal/sdktest

go 1.26.0

require (
	github.com/google/go-github/v89 v89.0.0
	github.com/httpthrottle/throttle v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/google/go-querystring v1.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/httpthrottle/throttle => ../..
