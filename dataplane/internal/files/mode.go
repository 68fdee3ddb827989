// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package files

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Mode is a permission as the wire writes it: octal digits read as a decimal number, so 755 means rwxr-xr-x and 1777
// has the sticky bit. Zero means "leave as it is".
type Mode int

// ParseMode checks the digits of a wire mode.
func ParseMode(digits string) (Mode, error) {
	bits, err := strconv.ParseUint(digits, 8, 32)
	if err != nil || bits > 0o7777 {
		return 0, fmt.Errorf("mode %q is not an octal permission such as 755 or 1777", digits)
	}
	return ModeOf(uint32(bits)), nil
}

// ModeOf writes permission bits the way the wire does.
func ModeOf(bits uint32) Mode {
	n, _ := strconv.Atoi(strconv.FormatUint(uint64(bits&0o7777), 8)) // octal digits always parse
	return Mode(n)
}

// Bits returns the permission bits.
func (m Mode) Bits() uint32 {
	bits, _ := strconv.ParseUint(strconv.Itoa(int(m)), 8, 32) // a Mode only ever holds octal digits
	return uint32(bits)
}

// UnmarshalJSON accepts a number, the same digits as text ("0755"), or null.
func (m *Mode) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	digits := string(text)
	if len(text) > 0 && text[0] == '"' {
		if err := json.Unmarshal(text, &digits); err != nil {
			return err
		}
		if digits == "" {
			return nil
		}
	}
	mode, err := ParseMode(digits)
	if err != nil {
		return err
	}
	*m = mode
	return nil
}
