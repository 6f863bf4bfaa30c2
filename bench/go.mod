module github.com/httpthrottle/throttle/bench

go 1.26.0

require (
	github.com/httpthrottle/throttle v0.0.0
	golang.org/x/time v0.16.0
)

replace github.com/httpthrottle/throttle => ../
