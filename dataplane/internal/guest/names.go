// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// namesFolder is where the files are in memory before they are shown below /etc.
const namesFolder = "/dev/.names"

// names are the files that say who the machine is. Each is in memory and mounted over the image's own, so
// that taking another identity writes nothing to a disk.
type names map[string]*os.File

// openNames shows empty files, which can be written without looking for them again.
func openNames() (names, error) {
	if err := mountAll(mount{"names", namesFolder, "tmpfs", hardened, "mode=755,size=1m"}); err != nil {
		return nil, err
	}
	found := names{}
	for _, name := range []string{"hostname", "hosts", "machine-id", "resolv.conf"} {
		file, err := openName(name)
		if err != nil {
			return nil, fmt.Errorf("show /etc/%s: %w", name, err)
		}
		found[name] = file
	}
	// The files stay where they are shown.
	if err := unix.Unmount(namesFolder, unix.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("hide the folder of names: %w", err)
	}
	return found, os.Remove(namesFolder)
}

func openName(name string) (*os.File, error) {
	source, target := namesFolder+"/"+name, "/etc/"+name
	file, err := os.OpenFile(source, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := replaceFile(target, ""); err != nil {
		return nil, err
	}
	return file, unix.Mount(source, target, "", unix.MS_BIND, "")
}

// write changes the files whose content is another one now.
func (n names) write(next, last identity) error {
	before, now := last.files(), next.files()
	for name, file := range n {
		if now[name] == before[name] {
			continue
		}
		if err := overwrite(file, now[name]); err != nil {
			return fmt.Errorf("write /etc/%s: %w", name, err)
		}
	}
	return nil
}

func (i identity) files() map[string]string {
	if i.Address == "" {
		return nil
	}
	resolv := ""
	for _, server := range i.Resolvers {
		resolv += "nameserver " + server + "\n"
	}
	return map[string]string{
		"hostname":    i.Hostname + "\n",
		"hosts":       "127.0.0.1 localhost\n::1 localhost\n" + i.Address + " " + i.Hostname + "\n",
		"machine-id":  i.MachineID + "\n",
		"resolv.conf": resolv,
	}
}

// overwrite makes the content of an open file this one.
func overwrite(file *os.File, content string) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(content), 0)
	return err
}

// replaceFile also works where the image has a link to somewhere else.
func replaceFile(name, content string) error {
	if err := os.MkdirAll(name[:strings.LastIndexByte(name, '/')], 0o755); err != nil {
		return err
	}
	partial := name + ".casulo"
	if err := os.WriteFile(partial, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, name)
}
