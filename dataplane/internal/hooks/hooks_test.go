// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package hooks

import (
	"strings"
	"testing"
	"time"

	"casulo.dev/dataplane/internal/boot"
)

func TestSchedules(t *testing.T) {
	after := time.Date(2024, 2, 28, 23, 59, 30, 0, time.UTC) // a Wednesday
	for text, want := range map[string]string{
		"@every 90s": "2024-02-29T00:01:00Z", "* * * * *": "2024-02-29T00:00:00Z", "*/15 * * * *": "2024-02-29T00:00:00Z",
		"30 4 * * *": "2024-02-29T04:30:00Z", "@hourly": "2024-02-29T00:00:00Z", "0 0 29 2 *": "2024-02-29T00:00:00Z",
		"0 12 1,15 * *": "2024-03-01T12:00:00Z", "0 0 * * 7": "2024-03-03T00:00:00Z", "0 0 * * 1-5": "2024-02-29T00:00:00Z",
		"5-10/5 22 * 12 *": "2024-12-01T22:05:00Z", "0 0 13 * 5": "2024-03-01T00:00:00Z", "@weekly": "2024-03-03T00:00:00Z",
	} {
		when, err := parseSchedule(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := when.next(after).Format(time.RFC3339); got != want {
			t.Errorf("%s: %s, not %s", text, got, want)
		}
	}
}

func TestSchedulesThatAreRefused(t *testing.T) {
	for _, text := range []string{"", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "*/0 * * * *", "5-1 * * * *", "@every 1ms", "@never"} {
		if _, err := parseSchedule(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	twice := []boot.Hook{{Name: "a", Schedule: "@hourly"}, {Name: "a", Schedule: "@hourly"}}
	if _, err := ParseAll(twice); err == nil || !strings.Contains(err.Error(), "names") {
		t.Error(err)
	}
}

func TestADateThatNeverComes(t *testing.T) {
	when, err := parseSchedule("0 0 31 2 *")
	if err != nil {
		t.Fatal(err)
	}
	if next := when.next(time.Now()); time.Until(next) < 4*365*24*time.Hour {
		t.Error(next)
	}
}

func FuzzSchedule(f *testing.F) {
	for _, seed := range []string{"@every 2s", "1-5/2,7 * * * *", "* * 31 2 *"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		when, err := parseSchedule(text)
		now := time.Now()
		if err == nil && !when.next(now).After(now) {
			t.Errorf("%q comes before now", text)
		}
	})
}
