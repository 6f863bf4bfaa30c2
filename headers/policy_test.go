package headers_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

func TestDraftFields(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  []headers.Bucket
	}{
		{[]string{`RateLimit: "a";r=5;t=9, b`}, []headers.Bucket{{Name: "a", Remaining: n(5), Reset: seconds(9)}}},
		{[]string{`RateLimit: "a";t=9`}, []headers.Bucket{{Name: "a", Reset: seconds(9)}}},
		{[]string{`RateLimit: "a";r=0;t=1795176009`}, []headers.Bucket{{Name: "a", Remaining: n(0), Reset: seconds(9)}}},
		{[]string{`RateLimit: "a";r=0;t=40000000`}, []headers.Bucket{{Name: "a", Remaining: n(0)}}},
		{[]string{`RateLimit-Policy: a;q=7;w=60;qu=tokens`}, []headers.Bucket{{Name: "a", Limit: n(7), Window: seconds(60), Unit: "tokens"}}},
		{[]string{`RateLimit-Policy: a;q=7;w=999999999999999`}, []headers.Bucket{{Name: "a", Limit: n(7)}}},

		// Partitions: a policy without one is for all.
		{
			[]string{`RateLimit: a;r=1;pk=:YQ==:, a;r=9;pk=:Yg==:`, `RateLimit-Policy: a;q=7`},
			[]headers.Bucket{
				{Name: "a", Limit: n(7), Remaining: n(1), PartitionKey: "a"}, {Name: "a", Limit: n(7), Remaining: n(7), PartitionKey: "b"},
			},
		},
		{
			[]string{`RateLimit: a;r=1;pk=:YQ==:`, `RateLimit-Policy: a;q=7;pk=:Yg==:`},
			[]headers.Bucket{{Name: "a", Remaining: n(1), PartitionKey: "a"}, {Name: "a", Limit: n(7), PartitionKey: "b"}},
		},
		{[]string{`RateLimit: a;r=1`, `RateLimit-Policy: a;q=7;pk=:Yg==:`}, []headers.Bucket{{Name: "a", Limit: n(7), Remaining: n(1), PartitionKey: "b"}}},

		// Malformed fields are ignored whole, and alone.
		{[]string{`RateLimit: a;r=5, b;r=-1`}, nil},
		{[]string{`RateLimit: a;r=5, 7`}, nil},
		{[]string{`RateLimit: 7`}, nil},
		{[]string{`RateLimit: a;r=5;t=?1`}, nil},
		{[]string{`RateLimit: a;r=5;pk=k`}, nil},
		{[]string{`RateLimit: a;r=5`, `RateLimit-Policy: a`}, []headers.Bucket{{Name: "a", Remaining: n(5)}}},
		{[]string{`RateLimit: a;r=5`, `RateLimit-Policy: a;q=7;qu=1`}, []headers.Bucket{{Name: "a", Remaining: n(5)}}},
		{[]string{`RateLimit: a;r=5`, `RateLimit-Policy: -7`}, []headers.Bucket{{Name: "a", Remaining: n(5)}}},
		{[]string{`RateLimit: a;r=5;`, `RateLimit-Policy: a;q=7`}, []headers.Bucket{{Name: "a", Limit: n(7)}}},

		// Draft -07 and before.
		{[]string{`RateLimit: limit=9, remaining=5, reset=7, x=(`}, nil},
		{[]string{`RateLimit: limit=9;w=3, remaining=5, reset=7, x`}, []headers.Bucket{{Name: "default", Limit: n(9), Remaining: n(5), Reset: seconds(7)}}},
		{[]string{`RateLimit: limit=9, remaining=many`}, nil},
		{[]string{`RateLimit-Policy: 9;w=60`}, []headers.Bucket{{Name: "default", Limit: n(9), Window: seconds(60)}}},
		{[]string{`RateLimit-Policy: 9;w=60, 50;w=3600`}, nil},
		{
			[]string{`RateLimit-Policy: 9;w=60, 50;w=3600`, `RateLimit-Limit: 50`, `RateLimit-Remaining: 3`},
			[]headers.Bucket{{Name: "default", Limit: n(50), Remaining: n(3), Window: seconds(3600)}},
		},
		{
			[]string{`RateLimit-Limit: 9;w=60, 50;w=3600`, `RateLimit-Remaining: 3, 4`},
			[]headers.Bucket{
				{Name: "default.0", Limit: n(9), Remaining: n(3), Window: seconds(60)},
				{Name: "default.1", Limit: n(50), Remaining: n(4), Window: seconds(3600)},
			},
		},

		// The draft's fields go before others, RateLimit- before X-RateLimit-, and each fills what the one before lacks.
		{
			[]string{`RateLimit: default;r=0`, `RateLimit-Remaining: 5`, `X-RateLimit-Remaining: 6`, `RateLimit-Limit: 7`, `X-RateLimit-Limit: 8`, `X-RateLimit-Reset: 9`},
			[]headers.Bucket{{Name: "default", Limit: n(7), Remaining: n(0), Reset: seconds(9)}},
		},
		{
			[]string{`X-RateLimit-Limit: 8`, `X-RateLimit: 7`, `X-RateLimit-Remaining: 5`, `RateLimit-Remaining: many`},
			[]headers.Bucket{{Name: "default", Limit: n(8), Remaining: n(5)}},
		},

		// Names of the default bucket.
		{[]string{`X-RateLimit-Remaining: 5`, `X-RateLimit-Resource: core`}, []headers.Bucket{{Name: "core", Remaining: n(5)}}},
		{[]string{`X-RateLimit-Remaining: 5`, `X-RateLimit-Resource: core`, `X-RateLimit-Bucket: b`}, []headers.Bucket{{Name: "b", Remaining: n(5)}}},
		{[]string{`X-RateLimit-Remaining: 5`, "X-RateLimit-Bucket: \x1b[0m"}, []headers.Bucket{{Name: "default", Remaining: n(5)}}},
		{
			[]string{`X-RateLimit-Remaining: 5`, `X-RateLimit-Bucket: requests`, `X-RateLimit-Limit-Requests: 9`},
			[]headers.Bucket{{Name: "requests", Limit: n(9), Remaining: n(5), Unit: "requests"}},
		},
		{[]string{`Beta-RateLimit: a;r=0;t=9`, `Beta-RateLimit-Policy: a;q=1`, `Beta-X-RateLimit-Remaining: 0`}, nil},
	} {
		assert.Equal(t, c.want, parse(200, c.lines...).Buckets, "%q", c.lines)
	}
}
