//go:build unix

package realserver

import (
	"os/exec"
	"syscall"
)

// ownGroup lets the process lead a group, so that signals reach its children too.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// Pause stops the server with all its children, by SIGSTOP.
func (s *Server) Pause() error { return syscall.Kill(-s.cmd.Process.Pid, syscall.SIGSTOP) }

// Resume lets a paused server go on, by SIGCONT.
func (s *Server) Resume() error { return syscall.Kill(-s.cmd.Process.Pid, syscall.SIGCONT) }

// Terminate asks the server to end, paused or not.
func (s *Server) Terminate() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.Resume()
}

// hangUp makes nginx read its configuration again.
func (s *Server) hangUp() error { return s.cmd.Process.Signal(syscall.SIGHUP) }
