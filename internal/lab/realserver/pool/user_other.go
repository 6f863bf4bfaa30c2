//go:build !unix

package main

import "syscall"

func unprivileged(string) (*syscall.SysProcAttr, error) { return nil, nil }
