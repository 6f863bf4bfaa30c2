module github.com/httpthrottle/throttle

go 1.26.0

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/stretchr/testify v1.12.1
	golang.org/x/sync v0.24.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
