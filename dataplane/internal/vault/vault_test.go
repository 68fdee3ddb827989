// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package vault

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

func document(t *testing.T, credentials map[string]any, bindings string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, _ := x509.MarshalPKCS8PrivateKey(key)
	told, err := json.Marshal(map[string]any{"revision": 7, "credentials": credentials, "bindings": json.RawMessage(bindings),
		"ca": map[string]string{"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
			"key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}})
	if err != nil {
		t.Fatal(err)
	}
	return told
}

const one = `[{"name":"b","match":{"hosts":["API.x.test","*.y.test"],"schemes":["https","http"],"ports":[80,443],"methods":["GET"],"paths":["/v1/*","/exact"]},
	"auth":{"type":"bearer","credential":"key"}}]`

func parsed(t *testing.T, bindings string) *Vault {
	t.Helper()
	v, err := Parse(document(t, map[string]any{"key": "secret-value"}, bindings), nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDestinations(t *testing.T) {
	v := parsed(t, one)
	for _, each := range []struct {
		d    Destination
		want bool
	}{
		{Destination{"api.x.test", 443, true}, true}, {Destination{"api.x.test", 80, false}, true},
		{Destination{"api.x.test", 80, true}, false}, {Destination{"api.x.test", 443, false}, false},
		{Destination{"api.x.test", 8443, true}, false}, {Destination{"x.test", 443, true}, false},
		{Destination{"a.y.test", 443, true}, true}, {Destination{"a.b.y.test", 443, true}, true},
		{Destination{"y.test", 443, true}, false}, {Destination{"noty.test", 443, true}, false},
		{Destination{".y.test", 443, true}, false}, {Destination{"", 443, true}, false},
	} {
		if got := v.Binds(each.d); got != each.want {
			t.Errorf("%+v: %v", each.d, got)
		}
	}
	var none *Vault
	if none.Binds(Destination{"api.x.test", 443, true}) || none.Looks(443) {
		t.Error("no vault binds something")
	}
}

func TestPaths(t *testing.T) {
	v := parsed(t, one)
	for raw, want := range map[string]bool{
		"/v1/": true, "/v1/a": true, "/v1/%61": true, "/%76%31/a": true, "/v1/a%2Fb": true, "/v1/a%252fb": true, "/v1/ä": true, "/exact": true,
		"/v1": false, "/v1%2fa": false, "/V1/a": false, "/v2/a": false, "/exact/": false, "//v1/a": false, "/v1%252fa": false,
	} {
		path, err := NormalPath(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		found, err := v.Find(Destination{"api.x.test", 443, true}, "GET", path)
		if err != nil || (found != nil) != want {
			t.Errorf("%s: %v %v", raw, found, err)
		}
	}
	for _, raw := range []string{"", "*", "v1", "/.", "/..", "/a/../b", "/%2e%2E/", "/%252e./", "/a%2f..%2fb", "/..;a/", "/a\\b", "/%5c", "/%255C", "/a%00",
		"/%0a", "/#", "/%c0%ae%c0%ae/", "/%ef%bc%8e%ef%bc%8e/", "/%e2%88%96", "/%25252525252525252541"} {
		if path, err := NormalPath(raw); err == nil {
			t.Errorf("%s became %+v", raw, path)
		}
	}
}

func TestErrorsRepeatNothing(t *testing.T) {
	for _, each := range []struct {
		credentials map[string]any
		bindings    string
	}{
		{map[string]any{"key": 123454321}, one}, {map[string]any{"key": []string{"123454321"}}, one}, {map[string]any{"key": "123454321\n"}, one},
		{map[string]any{"other": "123454321"}, one}, {map[string]any{"key": "123454321"}, strings.Replace(one, "bearer", "strange", 1)},
		{map[string]any{"key": "123454321"}, strings.Replace(one, `"bearer"`, `"apiKey","name":"X-Forwarded-For"`, 1)},
		{map[string]any{"key": "123454321"}, strings.Replace(one, "/v1/*", "/../*", 1)},
	} {
		data := document(t, each.credentials, each.bindings)
		_, err := Parse(data, nil)
		if err == nil || strings.Contains(err.Error(), "123454321") || strings.Contains(err.Error(), "PRIVATE") {
			t.Error(err)
		}
		if _, err := Parse(data[:len(data)-3], nil); err == nil || strings.Contains(err.Error(), "123454321") {
			t.Error(err)
		}
	}
}

func TestSecretsOfBeforeAreStillKnown(t *testing.T) {
	first, err := Parse(document(t, map[string]any{"key": "first-secret"}, one), nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Parse(document(t, map[string]any{"key": "second-secret"}, one), first)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Secrets.Text("first-secret second-secret third-secret"); got != "[REDACTED] [REDACTED] third-secret" {
		t.Error(got)
	}
}

func TestWhatBasicEncodesIsASecretToo(t *testing.T) {
	v, err := Parse(document(t, map[string]any{"key": "bWU6cGFzc3dvcmQtMTIz"}, strings.Replace(one, "bearer", "basic", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Secrets.Text("me:password-123, password-123, bWU6cGFzc3dvcmQtMTIz"); got != "[REDACTED], [REDACTED], [REDACTED]" {
		t.Error(got)
	}
}
