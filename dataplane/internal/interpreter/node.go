// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"os"
	"strconv"
)

func startNode(name string) func(launch) (engine, error) {
	return func(l launch) (engine, error) {
		program, err := node.find(l)
		if err != nil {
			return nil, err
		}
		text, err := driverFile("node.js")
		if err != nil {
			return nil, err
		}
		parser, err := driverFile("sucrase.min.js")
		if err != nil {
			return nil, err
		}
		script := "new Function('require','language','load',require('fs').readFileSync('/proc/self/fd/" +
			strconv.Itoa(driverFD) + "','utf8'))(require,'" + name + "',(name,options)=>import(name,options))"
		return newDriver(l, childSpec{
			path: program, argv: []string{program, "-e", script}, at: usual,
			files: map[int]*os.File{driverFD: text, helperFD: parser},
		})
	}
}
