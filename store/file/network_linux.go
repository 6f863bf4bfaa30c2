package file

import "syscall"

// networkFileSystem returns the name of the network file system that a directory is on, or "".
func networkFileSystem(dir string) string {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "" // what is wrong with it will show
	}
	return map[uint32]string{ // linux/magic.h and statfs(2)
		0x6969: "NFS", 0x517b: "SMB", 0xff534d42: "CIFS", 0xfe534d42: "SMB", 0x5346414f: "AFS", 0x6b414653: "AFS", 0x73757245: "Coda",
		0x65735546: "FUSE", 0x01021997: "9P", // these two may be local, but whether their locks reach other hosts is not known
		0x564c: "NCP", 0x00c36400: "Ceph", 0x0bd00bd0: "Lustre", 0x01161970: "GFS2", 0x7461636f: "OCFS2",
	}[uint32(s.Type)]
}
