//go:build !linux

package file

// networkFileSystem returns "": only Linux reports the file system of a directory in a way that is the same everywhere.
func networkFileSystem(string) string { return "" }
