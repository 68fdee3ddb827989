// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package trust makes the programs of a sandbox trust one more certificate authority besides the public ones: in
// the files that distributions, Java and browsers read, and by the variables that other programs look at. It only
// writes to the sandbox's own layer, never to a volume.
package trust

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Authority is whom to trust. Roots are public ones, for images that have none.
type Authority struct {
	Certificate string `json:"certificate"`
	Roots       string `json:"roots"`
}

// Where the certificate, and all roots together, are found inside.
const (
	folder     = "/etc/casulo"
	certFile   = folder + "/ca.pem"
	bundleFile = folder + "/ca-bundle.pem"
)

// installer is one installation into the tree below root.
type installer struct {
	root        string
	device      uint64
	authority   *Authority
	certificate *x509.Certificate
	env         map[string]string
}

// Install does all of it before anything of the user runs, and adds to the variables of processes to come. What a
// single program reads may be missing or elsewhere and is skipped; the common files must be there.
func Install(authority *Authority, env map[string]string) error {
	return install("/", authority, env)
}

func install(root string, authority *Authority, env map[string]string) error {
	block, _ := pem.Decode([]byte(authority.Certificate))
	if block == nil {
		return errors.New("the certificate to be trusted is no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the certificate to be trusted: %w", err)
	}
	var status syscall.Stat_t
	if err := syscall.Stat(root, &status); err != nil {
		return fmt.Errorf("look at %s: %w", root, err)
	}
	i := &installer{root, uint64(status.Dev), authority, certificate, env}
	roots := i.addToBundles()
	if err := i.writeCommon(roots); err != nil {
		return fmt.Errorf("install the sandbox's certificate authority: %w", err)
	}
	for what, step := range map[string]func() error{
		"anchor": i.addAnchors, "link": i.addLink, "keystore": i.addToKeystores, "browser": i.addBrowserPolicies,
	} {
		if err := step(); err != nil {
			log.Printf("event=trust_incomplete what=%s error=%q", what, err)
		}
	}
	i.setVariables()
	return nil
}

// writeCommon writes the files that the variables name.
func (i *installer) writeCommon(roots string) error {
	if err := os.MkdirAll(i.at(folder), 0o755); err != nil {
		return err
	}
	certificate := ended(i.authority.Certificate)
	return errors.Join(
		replace(i.at(certFile), []byte(certificate), 0o644),
		replace(i.at(bundleFile), []byte(ended(roots)+certificate), 0o644),
	)
}

func (i *installer) at(path string) string { return filepath.Join(i.root, path) }

// own is the real place of a file, if writing there changes nothing but the sandbox's own layer: what is mounted into
// it belongs to others.
func (i *installer) own(path string) (string, bool) {
	real, err := filepath.EvalSymlinks(i.at(path))
	if err != nil {
		return "", false
	}
	return real, i.isOwn(filepath.Dir(real))
}

func (i *installer) isOwn(directory string) bool {
	var status syscall.Stat_t
	return syscall.Stat(directory, &status) == nil && uint64(status.Dev) == i.device
}

func (i *installer) report(err error, path string) {
	if err != nil {
		log.Printf("event=trust_incomplete what=bundle path=%q error=%q", path, err)
	}
}

// replace puts a whole file in the place of what is there.
func replace(path string, content []byte, mode os.FileMode) error {
	draft, err := os.CreateTemp(filepath.Dir(path), ".casulo-*")
	if err != nil {
		return err
	}
	_, err = draft.Write(content)
	err = errors.Join(err, draft.Chmod(mode), draft.Close())
	if err == nil {
		err = os.Rename(draft.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft.Name()))
	}
	return nil
}

// ended makes sure that another certificate can follow.
func ended(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}
