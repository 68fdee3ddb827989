// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import "errors"

func startGo(l launch) (engine, error) {
	return nil, errors.New("not yet")
}
