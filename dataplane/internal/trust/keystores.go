// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package trust

import (
	"bytes"
	"crypto/sha1" // the format's own digest
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unicode/utf16"

	"casulo.dev/dataplane/internal/plain"
)

const (
	javaStore     = folder + "/cacerts"
	javaVariable  = "JAVA_TOOL_OPTIONS"
	alias         = "casulo-sandbox-authority"
	storePassword = "changeit"
	storeLimit    = 16 << 20
	storeMagic    = 0xFEEDFEED
	storeVersion  = 2
	trustedEntry  = 2
	digestSize    = 20
)

// keystores are where Java's roots are, in distributions and in builds of others.
var keystores = []string{
	"/etc/ssl/certs/java/cacerts",
	"/etc/pki/java/cacerts",
	"/etc/pki/ca-trust/extracted/java/cacerts",
	"/usr/lib/jvm/*/lib/security/cacerts",
	"/usr/lib/jvm/*/jre/lib/security/cacerts",
	"/usr/java/*/lib/security/cacerts",
	"/usr/local/openjdk-*/lib/security/cacerts",
	"/opt/java/*/lib/security/cacerts",
	"/opt/*/lib/security/cacerts",
}

// addToKeystores adds to the stores that are the sandbox's own. For one that is not, a copy is made, to which a
// variable points; Java then says so at every start, which is why that is not done always.
func (i *installer) addToKeystores() error {
	patterns := keystores
	if home := i.env["JAVA_HOME"]; home != "" {
		patterns = append([]string{filepath.Join(home, "lib/security/cacerts")}, patterns...)
	}
	var failed error
	done := map[string]bool{}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(i.at(pattern))
		for _, path := range found {
			real, err := filepath.EvalSymlinks(path)
			if err != nil || done[real] {
				continue
			}
			done[real] = true
			if err := i.addToKeystore(real); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", real, err))
			}
		}
	}
	return failed
}

func (i *installer) addToKeystore(path string) error {
	content, err := plain.Read(path, storeLimit)
	if err != nil {
		return err
	}
	store, err := extended(content, i.certificate.Raw, time.Now())
	if err != nil {
		return err
	}
	if i.isOwn(filepath.Dir(path)) {
		return replaceKeepingMode(path, string(store))
	}
	if _, given := i.env[javaVariable]; given {
		return errors.New("it cannot be changed, and " + javaVariable + " is set already")
	}
	i.env[javaVariable] = "-Djavax.net.ssl.trustStore=" + javaStore + " -Djavax.net.ssl.trustStorePassword=" + storePassword
	return replace(i.at(javaStore), store, 0o644)
}

// extended is a store in Java's own format with what a store holds and one more certificate. Every Java reads
// that format, whatever its own stores are written in.
func extended(store, certificate []byte, now time.Time) ([]byte, error) {
	entries, count, err := entriesOf(store, now)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(entries, certificate) {
		entries = appendEntry(entries, alias+now.Format("-20060102150405"), certificate, now)
		count++
	}
	out := binary.BigEndian.AppendUint32(nil, storeMagic)
	out = binary.BigEndian.AppendUint32(out, storeVersion)
	out = binary.BigEndian.AppendUint32(out, count)
	out = append(out, entries...)
	return append(out, storeDigest(out)...), nil
}

// entriesOf is what is in a store: the bytes of the entries, or of new ones made of another format's certificates.
func entriesOf(store []byte, now time.Time) ([]byte, uint32, error) {
	const head = 12
	if len(store) >= head+digestSize && binary.BigEndian.Uint32(store) == storeMagic {
		body := store[:len(store)-digestSize]
		if binary.BigEndian.Uint32(store[4:]) != storeVersion || !bytes.Equal(storeDigest(body), store[len(body):]) {
			return nil, 0, errors.New("it has another version or password")
		}
		return bytes.Clone(body[head:]), binary.BigEndian.Uint32(store[8:]), nil
	}
	certificates, err := certificatesOf(store)
	if err != nil {
		return nil, 0, fmt.Errorf("it is in no known format: %w", err)
	}
	var entries []byte
	for number, each := range certificates {
		entries = appendEntry(entries, fmt.Sprintf("root-%d", number), each, now)
	}
	return entries, uint32(len(certificates)), nil
}

func appendEntry(entries []byte, name string, certificate []byte, now time.Time) []byte {
	entries = binary.BigEndian.AppendUint32(entries, trustedEntry)
	entries = appendText(entries, name)
	entries = binary.BigEndian.AppendUint64(entries, uint64(now.UnixMilli()))
	entries = appendText(entries, "X.509")
	entries = binary.BigEndian.AppendUint32(entries, uint32(len(certificate)))
	return append(entries, certificate...)
}

func appendText(out []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(text))), text...)
}

func storeDigest(body []byte) []byte {
	digest := sha1.New()
	for _, unit := range utf16.Encode([]rune(storePassword)) {
		digest.Write([]byte{byte(unit >> 8), byte(unit)})
	}
	digest.Write([]byte("Mighty Aphrodite"))
	digest.Write(body)
	return digest.Sum(nil)
}

type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue `asn1:"tag:0,explicit,optional"`
}

type keyBox struct {
	Version int
	Safe    contentInfo
	Rest    asn1.RawValue `asn1:"optional"`
}

type bag struct {
	Type       asn1.ObjectIdentifier
	Value      asn1.RawValue `asn1:"tag:0,explicit"`
	Attributes asn1.RawValue `asn1:"optional"`
}

type certificateBag struct {
	Type  asn1.ObjectIdentifier
	Value []byte `asn1:"tag:0,explicit"`
}

var plainData = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}

// certificatesOf reads a PKCS #12 store that is not encrypted, as Java's own are from version 18 on.
func certificatesOf(store []byte) ([][]byte, error) {
	var box keyBox
	if _, err := asn1.Unmarshal(store, &box); err != nil {
		return nil, err
	}
	var safes []contentInfo
	if err := unpack(box.Safe, &safes); err != nil {
		return nil, err
	}
	var found [][]byte
	for _, safe := range safes {
		var bags []bag
		if err := unpack(safe, &bags); err != nil {
			return nil, err
		}
		for _, each := range bags {
			var inside certificateBag
			if _, err := asn1.Unmarshal(each.Value.Bytes, &inside); err != nil {
				return nil, err
			}
			found = append(found, inside.Value)
		}
	}
	return found, nil
}

func unpack(info contentInfo, into any) error {
	if !info.Type.Equal(plainData) {
		return errors.New("it is encrypted")
	}
	var octets []byte
	if _, err := asn1.Unmarshal(info.Content.Bytes, &octets); err != nil {
		return err
	}
	_, err := asn1.Unmarshal(octets, into)
	return err
}
