//go:build !unix

package realserver

import (
	"errors"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// Pause is not supported here.
func (s *Server) Pause() error { return errors.ErrUnsupported }

// Resume is not supported here.
func (s *Server) Resume() error { return errors.ErrUnsupported }

// Terminate ends the server.
func (s *Server) Terminate() error { return s.cmd.Process.Kill() }

func (s *Server) hangUp() error { return errors.ErrUnsupported }
