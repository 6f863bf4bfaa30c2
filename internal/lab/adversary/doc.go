// Package adversary has only tests: what servers, networks and clocks that mean harm, or are broken, do to a Transport. What held is
// listed in docs/lab/guarantees.md.
package adversary
