// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package leaf makes the certificates that sandboxes see for bound hosts. The key of the authority that
// signs them is in this process only.
package leaf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"sync"
	"time"
)

const (
	lifetime = 24 * time.Hour
	renewal  = 8 * time.Hour // left when a new one is made
	backward = time.Hour     // for clocks that are late
	mostKept = 128
)

var (
	errCertificate = errors.New("the authority's certificate is no PEM of a certificate")
	errKey         = errors.New("the authority's key is no PKCS #8 PEM of an ECDSA key, or not that of the certificate")
	errRoots       = errors.New("the upstream roots are no PEM of certificates")
)

// Authority signs for the hosts of one sandbox.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	leafKey     *ecdsa.PrivateKey

	mu   sync.Mutex
	kept map[string]*kept
}

type kept struct {
	certificate *tls.Certificate
	used        time.Time
}

// New reads an authority from PEM. No error repeats any of it.
func New(certificate, key []byte) (*Authority, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errCertificate
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errCertificate
	}
	if block, _ = pem.Decode(key); block == nil {
		return nil, errKey
	}
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errKey
	}
	signer, ok := private.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(parsed.PublicKey) {
		return nil, errKey
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{certificate: parsed, key: signer, leafKey: leafKey, kept: map[string]*kept{}}, nil
}

// For is the certificate of one name, made now or a while ago.
func (a *Authority) For(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if known := a.kept[name]; known != nil && known.certificate.Leaf.NotAfter.Sub(now) > renewal {
		known.used = now
		return known.certificate, nil
	}
	made, err := a.sign(name, now)
	if err != nil {
		return nil, err
	}
	if _, again := a.kept[name]; !again && len(a.kept) >= mostKept {
		a.forgetOldest()
	}
	a.kept[name] = &kept{made, now}
	return made, nil
}

func (a *Authority) forgetOldest() {
	oldest := ""
	for name, each := range a.kept {
		if oldest == "" || each.used.Before(a.kept[oldest].used) {
			oldest = name
		}
	}
	delete(a.kept, oldest)
}

func (a *Authority) sign(name string, now time.Time) (*tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	subject := sha256.Sum256(elliptic.MarshalCompressed(elliptic.P256(), a.leafKey.X, a.leafKey.Y))
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: shortened(name)}, DNSNames: []string{name},
		NotBefore: later(now.Add(-backward), a.certificate.NotBefore), NotAfter: earlier(now.Add(lifetime), a.certificate.NotAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, SubjectKeyId: subject[:20],
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: a.leafKey, Leaf: parsed}, nil
}

const longestCommonName = 64

// shortened keeps a certificate valid for clients that check the length of a name they do not use.
func shortened(name string) string {
	if len(name) > longestCommonName {
		return ""
	}
	return name
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
