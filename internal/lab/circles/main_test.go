package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestACircleIsFilesThatReachEachOther(t *testing.T) {
	uses := make(graph)
	for file, others := range map[string]string{"a": "b", "b": "c d", "c": "a", "d": "e", "e": "", "f": "g", "g": "f a"} {
		uses[file] = make(map[string]map[string]bool)
		for other := range strings.FieldsSeq(others) {
			uses[file][other] = map[string]bool{"name": true}
		}
	}
	assert.Equal(t, [][]string{{"a", "b", "c"}, {"f", "g"}}, circles(uses))
}

func TestNoCircleOfTheRootHasMoreThanSixFiles(t *testing.T) {
	uses, err := usesOf("github.com/httpthrottle/throttle")
	require.NoError(t, err)
	require.Contains(t, uses["blocking.go"]["grant.go"], "Grant")
	for _, circle := range circles(uses) {
		assert.LessOrEqual(t, len(circle), 6, "%v", circle)
	}
}
