// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"embed"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

//go:embed all:drivers
var embedded embed.FS

// language is how code of one kind is run.
type language struct {
	name    string
	aliases []string
	start   func(l launch) (engine, error)
}

var languages = []*language{
	{name: "python", aliases: []string{"py", "python3"}, start: startPython},
	{name: "javascript", aliases: []string{"js", "node"}, start: startNode("javascript")},
	{name: "typescript", aliases: []string{"ts"}, start: startNode("typescript")},
	{name: "java", start: startJava},
	{name: "go", aliases: []string{"golang"}, start: startGo},
	{name: "bash", aliases: []string{"sh", "shell"}, start: startBash},
}

func findLanguage(name string) *language {
	for _, each := range languages {
		if each.name == name {
			return each
		}
		for _, alias := range each.aliases {
			if alias == name {
				return each
			}
		}
	}
	return nil
}

func languageNames() []string {
	var names []string
	for _, each := range languages {
		names = append(names, each.name)
	}
	return names
}

// Where a driver finds its own text, and a helper's where it needs one.
const (
	driverFD = 5
	helperFD = 6
)

var driverFiles = struct {
	sync.Mutex
	byName map[string]*os.File
}{byName: map[string]*os.File{}}

// driverFile holds a driver's text in memory, sealed: all contexts share it and none can change it.
func driverFile(name string) (*os.File, error) {
	driverFiles.Lock()
	defer driverFiles.Unlock()
	if file := driverFiles.byName[name]; file != nil {
		return file, nil
	}
	text, err := driverText(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("keep a driver in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.Write(text); err != nil {
		return nil, fmt.Errorf("keep a driver in memory: %w", err)
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal a driver: %w", err)
	}
	driverFiles.byName[name] = file
	return file, nil
}

func driverText(name string) ([]byte, error) {
	if name == pythonDriver {
		return pythonArchive()
	}
	return embedded.ReadFile("drivers/" + name)
}

// pythonDriver names the archive; pythonStart imports the driver from it, out of the way of the
// descriptors that user code may close.
const (
	pythonDriver = "python.zip"
	pythonStart  = `import sys,os,fcntl; n=fcntl.fcntl(5,fcntl.F_DUPFD_CLOEXEC,200); os.close(5); ` +
		`sys.path.insert(1,"/proc/self/fd/%d"%n); sys.path[0]=""; import casulo_python.main`
)

func startPython(l launch) (engine, error) {
	program, err := python.find(l)
	if err != nil {
		return nil, err
	}
	text, err := driverFile(pythonDriver)
	if err != nil {
		return nil, err
	}
	return newDriver(l, childSpec{
		path: program, argv: []string{program, "-c", pythonStart},
		at: usual, files: map[int]*os.File{driverFD: text},
	})
}
