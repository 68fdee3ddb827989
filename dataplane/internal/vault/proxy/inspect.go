// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package proxy

import (
	"mime"
	"net/http"
	"slices"
	"strings"

	"casulo.dev/dataplane/internal/vault/plainbody"
	"casulo.dev/dataplane/internal/vault/redact"
)

// askPlain changes a request so that its answer can be looked into: whole, and in an encoding that is
// known here.
func askPlain(h http.Header) {
	h.Del("Range")
	h.Del("If-Range")
	h.Set("Accept-Encoding", "gzip, identity;q=0.5")
}

// lookInto makes secrets disappear from a body, or says why that cannot be done.
func (x *exchange) lookInto(r *http.Response) *refusal {
	if r.StatusCode == http.StatusSwitchingProtocols {
		return uninspected("the server switched to another protocol")
	}
	if isEmpty(r) {
		return nil
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		kind = strings.ToLower(r.Header.Get("Content-Type"))
	}
	switch {
	case r.StatusCode == http.StatusPartialContent || r.Header.Get("Content-Range") != "" || kind == "multipart/byteranges":
		return uninspected("the server sent a part of a body, in which a part of a secret could stand")
	case strings.HasPrefix(kind, "application/grpc"):
		return uninspected("gRPC messages cannot be changed on their way")
	}
	plain, err := plainbody.Open(r.Body, r.Header.Values("Content-Encoding"))
	if err != nil {
		return uninspected(err.Error())
	}
	r.Body = redact.Reader(plain, kind == "text/event-stream" || kind == "application/x-ndjson", x.secrets)
	r.ContentLength = -1
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest", "Accept-Ranges"} {
		r.Header.Del(name)
	}
	return nil
}

func isEmpty(r *http.Response) bool {
	return r.Request.Method == http.MethodHead || slices.Contains([]int{204, 304}, r.StatusCode) || r.ContentLength == 0
}

func uninspected(why string) *refusal {
	return &refusal{status: http.StatusBadGateway, code: "uninspected", by: "vault",
		reason: "the answer's body must be looked into for secrets, and cannot be: " + why}
}
