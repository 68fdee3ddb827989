// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package trust

import (
	"crypto/sha1" // OpenSSL names files by it
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"casulo.dev/dataplane/internal/plain"
)

const (
	begin       = "# begin casulo sandbox authority\n"
	end         = "# end casulo sandbox authority\n"
	bundleLimit = 16 << 20
	mostLinks   = 16
)

// bundles are the files with all public roots of Debian and Alpine, Red Hat, SUSE, and BSD-like systems.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/var/lib/ca-certificates/ca-bundle.pem",
	"/etc/ssl/cert.pem",
	"/usr/lib/ssl/cert.pem",
}

// anchors are where distributions look for further authorities when they write their bundles anew.
var anchors = map[string]string{
	"/usr/local/share/ca-certificates": "casulo.crt",
	"/etc/pki/ca-trust/source/anchors": "casulo.pem",
	"/etc/pki/trust/anchors":           "casulo.pem",
}

// addToBundles returns the roots that there are without ours: the largest bundle's. Where there is none one is made.
func (i *installer) addToBundles() string {
	roots := ""
	done := map[string]bool{}
	for _, name := range bundles {
		real, own := i.own(name)
		if real == "" || done[real] {
			continue
		}
		done[real] = true
		found, err := plain.Read(real, bundleLimit)
		if err != nil {
			continue
		}
		content := withoutOurs(string(found))
		if len(content) > len(roots) {
			roots = content
		}
		if own {
			i.report(replaceKeepingMode(real, i.withOurs(content)), real)
		}
	}
	if roots != "" {
		return roots
	}
	path := i.at(bundles[0])
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil && i.isOwn(filepath.Dir(path)) {
		err = replace(path, []byte(i.withOurs(i.authority.Roots)), 0o644)
	}
	i.report(err, path)
	return i.authority.Roots
}

func (i *installer) withOurs(roots string) string {
	return ended(roots) + begin + ended(i.authority.Certificate) + end
}

func withoutOurs(content string) string {
	before, rest, found := strings.Cut(content, begin)
	if !found {
		return content
	}
	_, after, _ := strings.Cut(rest, end)
	return before + after
}

func replaceKeepingMode(path, content string) error {
	status, err := os.Stat(path)
	if err != nil {
		return err
	}
	return replace(path, []byte(content), status.Mode().Perm())
}

func (i *installer) addAnchors() error {
	var failed error
	for directory, name := range anchors {
		real, own := i.own(directory)
		if directory == "/usr/local/share/ca-certificates" && real == "" && i.isOwn(i.at("/usr/local")) {
			failed = errors.Join(failed, os.MkdirAll(i.at(directory), 0o755))
			real, own = i.own(directory)
		}
		if real != "" && own && i.isOwn(real) {
			failed = errors.Join(failed, replace(filepath.Join(real, name), []byte(i.authority.Certificate), 0o644))
		}
	}
	return failed
}

// addLink gives OpenSSL the certificate under the name by which it looks for issuers in a directory.
func (i *installer) addLink() error {
	const directory = "/etc/ssl/certs"
	real, own := i.own(directory)
	if real == "" || !own || !i.isOwn(real) {
		return nil
	}
	hash, err := subjectHash(i.certificate.RawSubject)
	if err != nil {
		return err
	}
	for number := range mostLinks {
		path := filepath.Join(real, fmt.Sprintf("%08x.%d", hash, number))
		target, err := os.Readlink(path)
		if err == nil && target == certFile {
			return nil
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return os.Symlink(certFile, path)
		}
	}
	return fmt.Errorf("%s has %d files for %08x", directory, mostLinks, hash)
}

// subjectHash is OpenSSL's: of the name's parts, each text as UTF-8 in lower case with single blanks.
func subjectHash(subject []byte) (uint32, error) {
	var name []asn1.RawValue
	if _, err := asn1.Unmarshal(subject, &name); err != nil {
		return 0, fmt.Errorf("the certificate's subject: %w", err)
	}
	var canonical []byte
	for _, set := range name {
		var part struct {
			Type  asn1.ObjectIdentifier
			Value asn1.RawValue
		}
		if _, err := asn1.Unmarshal(set.Bytes, &part); err != nil {
			return 0, fmt.Errorf("the certificate's subject: %w", err)
		}
		text := strings.Join(strings.Fields(strings.ToLower(string(part.Value.Bytes))), " ")
		part.Value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(text)}
		pair, err := asn1.Marshal(part)
		if err != nil {
			return 0, err
		}
		encoded, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: pair})
		if err != nil {
			return 0, err
		}
		canonical = append(canonical, encoded...)
	}
	sum := sha1.Sum(canonical)
	return binary.LittleEndian.Uint32(sum[:4]), nil
}

// addBrowserPolicies lets Chromium and Chrome trust it, which read no bundle; they do from version 127 on.
func (i *installer) addBrowserPolicies() error {
	policy := map[string][]string{"CACertificates": {base64.StdEncoding.EncodeToString(i.certificate.Raw)}}
	content, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	for _, browser := range []string{"/etc/chromium", "/etc/opt/chrome"} {
		directory := i.at(browser + "/policies/managed")
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return err
		}
		if i.isOwn(directory) {
			err = errors.Join(err, replace(filepath.Join(directory, "casulo.json"), content, 0o644))
		}
	}
	return err
}

// variables are what programs look at that bring roots of their own. A variable that is set stays.
var variables = map[string]string{
	"SSL_CERT_FILE":       bundleFile,
	"REQUESTS_CA_BUNDLE":  bundleFile,
	"CURL_CA_BUNDLE":      bundleFile,
	"GIT_SSL_CAINFO":      bundleFile,
	"PIP_CERT":            bundleFile,
	"AWS_CA_BUNDLE":       bundleFile,
	"CARGO_HTTP_CAINFO":   bundleFile,
	"NODE_EXTRA_CA_CERTS": certFile,
	"DENO_CERT":           certFile,
}

func (i *installer) setVariables() {
	for name, path := range variables {
		if _, given := i.env[name]; !given {
			i.env[name] = path
		}
	}
}
