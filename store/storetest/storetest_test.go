package storetest

import (
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/store"
)

func TestMemoryStoreConforms(t *testing.T) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.Test(t, store.NewMemory()) })
		})
	}
}
