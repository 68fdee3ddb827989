// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"fmt"
	"os"
)

func startJava(l launch) (engine, error) {
	program, err := java.find(l)
	if err != nil {
		return nil, err
	}
	text, err := driverFile("Driver.java")
	if err != nil {
		return nil, err
	}
	d, err := newDriver(l, childSpec{
		path: program, at: usual, files: map[int]*os.File{driverFD: text},
		argv: []string{
			program, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss1m", "-Xshare:auto",
			"--add-modules", "jdk.jshell", "--source", "11", fmt.Sprintf("/proc/self/fd/%d", driverFD),
		},
	})
	if err != nil {
		return nil, err
	}
	// A signal would end the virtual machine; the driver stops the cell by itself.
	d.ask = func() {
		if d.order(appendFrame(nil, "interrupt")) != nil {
			d.process.Tree.Kill()
		}
	}
	return d, nil
}
