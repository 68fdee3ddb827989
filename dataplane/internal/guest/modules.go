// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// modules is where the initial memory disk has drivers, and a file with their names in order.
const modules = "/modules"

// loadModules loads every driver and forgets the files, which take memory.
func loadModules() error {
	names, err := os.ReadFile(filepath.Join(modules, "order"))
	if err != nil {
		return fmt.Errorf("read the list of drivers: %w", err)
	}
	vsock := overVsock()
	for _, name := range strings.Fields(string(names)) {
		if strings.Contains(name, "vsock") && !vsock {
			continue
		}
		if err := loadModule(filepath.Join(modules, name)); err != nil {
			return fmt.Errorf("load the driver %s: %w", name, err)
		}
	}
	return os.RemoveAll(modules)
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	err = unix.FinitModule(int(file.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
