// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestActivityIsWhatOthersDo(t *testing.T) {
	activity := NewActivity()
	inside, leave := make(chan bool), make(chan bool)
	served := activity.Track(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			inside <- true
			<-leave
		}
	}))
	ask := func() map[string]int64 {
		answer := httptest.NewRecorder()
		activity.Handler(func() int { return 7 })(answer, nil)
		var told map[string]int64
		if err := json.Unmarshal(answer.Body.Bytes(), &told); err != nil {
			t.Fatal(err)
		}
		return told
	}
	call := func(path string) { served.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)) }
	time.Sleep(30 * time.Millisecond)
	call("/ping")
	call(ActivityPath)
	if told := ask(); told["idle_ms"] < 30 || told["requests"] != 0 || told["commands"] != 7 {
		t.Fatal(told)
	}
	done := make(chan bool)
	go func() { call("/busy"); done <- true }()
	<-inside
	if told := ask(); told["requests"] != 1 {
		t.Fatal(told)
	}
	leave <- true
	<-done
	if told := ask(); told["requests"] != 0 || told["idle_ms"] >= 30000 {
		t.Fatal(told)
	}
}
