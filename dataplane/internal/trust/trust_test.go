// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const publicRoots = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"

func authority(t *testing.T, name string) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), "# host\n" + publicRoots}
}

func write(t *testing.T, root, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, root, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestBundlesKeepTheirRoots(t *testing.T) {
	for _, bundle := range bundles {
		root, env, made := t.TempDir(), map[string]string{}, authority(t, "one")
		write(t, root, bundle, "# image\n"+publicRoots)
		for range 2 { // also a second time, as in what was made from a snapshot
			if err := install(root, made, env); err != nil {
				t.Fatal(err)
			}
		}
		text := read(t, root, bundle)
		if !strings.HasPrefix(text, "# image\n"+publicRoots) || strings.Count(text, made.Certificate) != 1 {
			t.Errorf("%s: %s", bundle, text)
		}
		if status, err := os.Stat(filepath.Join(root, bundle)); err != nil || status.Mode().Perm() != 0o640 {
			t.Error(bundle, status.Mode(), err)
		}
		if got := read(t, root, bundleFile); got != "# image\n"+publicRoots+made.Certificate {
			t.Errorf("%s: %s", bundle, got)
		}
	}
}

func TestImagesWithoutRootsGetTheHosts(t *testing.T) {
	root, made := t.TempDir(), authority(t, "one")
	if err := install(root, made, map[string]string{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bundles[0], bundleFile} {
		if text := read(t, root, path); !strings.HasPrefix(text, made.Roots) || !strings.Contains(text, made.Certificate) {
			t.Error(path, text)
		}
	}
	if read(t, root, certFile) != made.Certificate {
		t.Error("the certificate alone differs")
	}
}

func TestAnotherAuthorityReplacesTheEarlierOne(t *testing.T) {
	root, first, second := t.TempDir(), authority(t, "one"), authority(t, "two")
	write(t, root, bundles[0], publicRoots)
	for _, made := range []*Authority{first, second} {
		if err := install(root, made, map[string]string{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{bundles[0], bundleFile, certFile} {
		text := read(t, root, path)
		if strings.Contains(text, first.Certificate) || !strings.Contains(text, second.Certificate) {
			t.Error(path, text)
		}
	}
}

func TestVariablesThatAreSetStay(t *testing.T) {
	env := map[string]string{"SSL_CERT_FILE": "/mine.pem"}
	if err := install(t.TempDir(), authority(t, "one"), env); err != nil {
		t.Fatal(err)
	}
	if env["SSL_CERT_FILE"] != "/mine.pem" || env["NODE_EXTRA_CA_CERTS"] != certFile || env["GIT_SSL_CAINFO"] != bundleFile {
		t.Error(env)
	}
}

func TestLinksLeadToTheRealBundle(t *testing.T) {
	root, made := t.TempDir(), authority(t, "one")
	write(t, root, "/usr/share/bundle.pem", publicRoots)
	if err := os.MkdirAll(filepath.Join(root, "/etc/ssl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../usr/share/bundle.pem", filepath.Join(root, "/etc/ssl/cert.pem")); err != nil {
		t.Fatal(err)
	}
	if err := install(root, made, map[string]string{}); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(filepath.Join(root, "/etc/ssl/cert.pem")); err != nil || target != "../../usr/share/bundle.pem" {
		t.Error(target, err)
	}
	if !strings.Contains(read(t, root, "/usr/share/bundle.pem"), made.Certificate) {
		t.Error("the link's target was not changed")
	}
}

func TestWhatIsNoFileOrNoCertificateIsLeftAlone(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, bundles[0]), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, root, "/etc/ssl/certs/java/cacerts", "no keystore")
	if err := install(root, authority(t, "one"), map[string]string{}); err != nil {
		t.Fatal(err)
	}
	if read(t, root, "/etc/ssl/certs/java/cacerts") != "no keystore" {
		t.Error("what is not understood was changed")
	}
	for _, text := range []string{"", "x", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"} {
		if err := install(root, &Authority{Certificate: text}, map[string]string{}); err == nil {
			t.Errorf("%q was taken for a certificate", text)
		}
	}
}

func TestSubjectHashIsOpenSSLs(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("CANNOT RUN: openssl is not installed")
	}
	for _, name := range []string{"casulo sandbox 3f", "Mixed  CASE  name "} {
		made := authority(t, name)
		command := exec.Command(openssl, "x509", "-noout", "-subject_hash")
		command.Stdin = strings.NewReader(made.Certificate)
		want, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode([]byte(made.Certificate))
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		got, err := subjectHash(certificate.RawSubject)
		if err != nil || fmt.Sprintf("%08x", got) != strings.TrimSpace(string(want)) {
			t.Errorf("%q: %08x, %s, %v", name, got, want, err)
		}
	}
}

// TestKeystoresAreReadByJava has keytool, which reads both formats as Java does, look at what was made of them.
func TestKeystoresAreReadByJava(t *testing.T) {
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("CANNOT RUN: keytool is not installed")
	}
	first, second := authority(t, "first"), authority(t, "second")
	for _, kind := range []string{"JKS", "PKCS12"} {
		root := t.TempDir()
		write(t, root, "/one.pem", first.Certificate)
		store := filepath.Join(root, "/etc/ssl/certs/java/cacerts")
		if err := os.MkdirAll(filepath.Dir(store), 0o755); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(keytool, "-importcert", "-noprompt", "-alias", "first", "-file", filepath.Join(root, "/one.pem"),
			"-keystore", store, "-storepass", "changeit", "-storetype", kind,
			"-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		for range 2 {
			if err := install(root, second, map[string]string{}); err != nil {
				t.Fatal(err)
			}
		}
		listed, err := exec.Command(keytool, "-list", "-rfc", "-keystore", store, "-storepass", "changeit").CombinedOutput()
		flat := strings.ReplaceAll(string(listed), "\r", "")
		if err != nil || strings.Count(flat, "BEGIN CERTIFICATE") != 2 {
			t.Error(kind, err, flat)
		}
	}
}

func FuzzKeystore(f *testing.F) {
	f.Add([]byte{0xfe, 0xed, 0xfe, 0xed}, []byte("x"))
	f.Add([]byte{0x30, 0x03, 0x02, 0x01, 0x03}, []byte("x"))
	f.Fuzz(func(t *testing.T, store, certificate []byte) {
		made, err := extended(store, certificate, time.Now())
		if err == nil && !bytes.Contains(made, certificate) {
			t.Error("the certificate is missing")
		}
	})
}
