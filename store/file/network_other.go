//go:build !linux

package file

// networkFileSystem returns "": only Linux says what a directory is on in a way that is the same everywhere.
func networkFileSystem(string) string { return "" }
