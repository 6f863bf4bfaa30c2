// Release has what a release needs to know of the modules of this repository. See RELEASING.md.
//
//	release proxy DIR VERSION   a module proxy of files with the published modules, as they will be once they are tagged
//	release licences            the licences of all that the published modules depend on; an unknown one is an error
//	release sbom DIR VERSION    a bill of materials of each published module, as CycloneDX JSON
//
// It runs in the directory of the root module.
package main

import (
	"fmt"
	"os"
	"path"
)

const root = "github.com/httpthrottle/throttle"

// published are the directories of the modules that users require, in the order in which they are tagged.
var published = [...]string{".", "throttleotel", "throttleprom", "throttleredis"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "proxy":
		return writeProxy(args[1], args[2])
	case len(args) == 1 && args[0] == "licences":
		return printLicences(os.Stdout)
	case len(args) == 3 && args[0] == "sbom":
		return writeBills(args[1], args[2])
	}
	return fmt.Errorf("want proxy DIR VERSION, licences, or sbom DIR VERSION")
}

// modulePath returns the path of the module in a directory.
func modulePath(dir string) string { return path.Join(root, dir) }
