package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/httpthrottle/throttle/internal/bucket"
)

// join returns all faults as one error, each once and on a line that begins with the prefix; nil if there are none.
func join(prefix string, faults ...error) error {
	var lines []error
	said := make(map[string]bool)
	for _, fault := range faults {
		for _, err := range split(fault) {
			if text := err.Error(); !said[text] {
				said[text] = true
				lines = append(lines, fmt.Errorf("%s: %w", prefix, err))
			}
		}
	}
	return errors.Join(lines...)
}

// split returns the errors that were joined to one.
func split(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
	case ok:
		for _, e := range joined.Unwrap() {
			all = append(all, split(e)...)
		}
	default:
		all = []error{err}
	}
	return all
}

// unknownLimit returns the error for a name that no limit has, with the names there are.
func unknownLimit(name string, limits []*bucket.Limit) error {
	var names []string
	for _, li := range limits {
		if !li.Open {
			names = append(names, strconv.Quote(li.Name))
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("there is no limit named %q; there are no limits", name)
	}
	return fmt.Errorf("there is no limit named %q; the limits are %s", name, strings.Join(names, ", "))
}
