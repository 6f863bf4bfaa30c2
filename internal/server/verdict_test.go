package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each verdict is a refusal, or says that no limit stopped the request, or neither.
func TestAVerdictIsARefusalOrNot(t *testing.T) {
	for v := NoVerdict; v <= Done; v++ {
		refused := v != NoVerdict && v < Nothing
		assert.Equal(t, refused, v.Refused(), "%d", v)
		assert.Equal(t, refused, v.String() != "", "%d", v)
		assert.Equal(t, v == Declined || v == Done, v.Accepted(), "%d", v)
		assert.Equal(t, refused && v != Final, v.Teaches() != v.Explained(), "%d", v)
		assert.False(t, v.Teaches() && v.Explained(), "%d", v)
	}
	assert.Empty(t, Verdict(99).String())
}
