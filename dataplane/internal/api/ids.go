// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID makes an opaque id of 32 hexadecimal digits.
func NewID() string { return hex.EncodeToString(randomBytes()) }

// NewUUID makes a random UUID, for ids that clients parse as one.
func NewUUID() string {
	b := randomBytes()
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func randomBytes() []byte {
	random := make([]byte, 16)
	// The kernel's generator never fails: rand.Read ends the program instead.
	_, _ = rand.Read(random)
	return random
}
