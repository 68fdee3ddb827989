// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package hooks

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"casulo.dev/dataplane/internal/boot"
)

// Scheduled is a hook with a schedule that was understood.
type Scheduled struct {
	hook boot.Hook
	when schedule
}

// schedule says when a hook runs next.
type schedule interface {
	next(after time.Time) time.Time
}

// InvalidError says that hooks were asked for which can never run as written.
type InvalidError struct{ cause error }

func (e *InvalidError) Error() string { return e.cause.Error() }

func (e *InvalidError) Unwrap() error { return e.cause }

// ParseAll checks all periodic hooks before anything starts.
func ParseAll(hooks []boot.Hook) ([]Scheduled, error) {
	var all []Scheduled
	names := map[string]bool{}
	for _, hook := range hooks {
		if hook.Name == "" || names[hook.Name] {
			return nil, &InvalidError{fmt.Errorf("periodic hooks need names of their own, %q is not one", hook.Name)}
		}
		names[hook.Name] = true
		when, err := parseSchedule(hook.Schedule)
		if err != nil {
			return nil, &InvalidError{fmt.Errorf("the schedule of the hook %s: %w", hook.Name, err)}
		}
		all = append(all, Scheduled{hook: hook, when: when})
	}
	return all, nil
}

var shorthands = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
	"@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// parseSchedule understands "@every 30s", the shorthands, and five cron fields in UTC.
func parseSchedule(text string) (schedule, error) {
	text = strings.TrimSpace(text)
	if duration, found := strings.CutPrefix(text, "@every "); found {
		interval, err := time.ParseDuration(strings.TrimSpace(duration))
		if err != nil || interval < time.Second {
			return nil, errors.New("@every needs a duration of at least 1s")
		}
		return every(interval), nil
	}
	if expanded, found := shorthands[text]; found {
		text = expanded
	}
	return parseCron(text)
}

type every time.Duration

func (e every) next(after time.Time) time.Time { return after.Add(time.Duration(e)) }

// cron has one bit per allowed value in each field.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// anyDay and anyWeekday tell a star from a list: two lists mean either of them.
	anyDay, anyWeekday bool
}

var cronFields = []struct {
	name     string
	low, top int
}{{"minute", 0, 59}, {"hour", 0, 23}, {"day of month", 1, 31}, {"month", 1, 12}, {"day of week", 0, 7}}

func parseCron(text string) (*cron, error) {
	fields := strings.Fields(text)
	if len(fields) != len(cronFields) {
		return nil, errors.New("it needs five fields: minute, hour, day of month, month, day of week")
	}
	var bits [5]uint64
	for i, field := range fields {
		var err error
		if bits[i], err = parseField(field, cronFields[i].low, cronFields[i].top); err != nil {
			return nil, fmt.Errorf("%s: %w", cronFields[i].name, err)
		}
	}
	const sunday, alsoSunday = 1, 1 << 7
	if bits[4]&alsoSunday != 0 {
		bits[4] |= sunday
	}
	return &cron{
		minutes: bits[0], hours: bits[1], days: bits[2], months: bits[3], weekdays: bits[4],
		anyDay: strings.HasPrefix(fields[2], "*"), anyWeekday: strings.HasPrefix(fields[4], "*"),
	}, nil
}

// parseField reads a list of "*", "n", "n-m", each perhaps with "/step".
func parseField(field string, low, top int) (bits uint64, err error) {
	for _, part := range strings.Split(field, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, fmt.Errorf("%q is no step", stepText)
			}
		}
		from, to, err := parseSpan(span, low, top, stepped)
		if err != nil {
			return 0, err
		}
		for value := from; value <= to; value += step {
			bits |= 1 << value
		}
	}
	return bits, nil
}

func parseSpan(span string, low, top int, stepped bool) (from, to int, err error) {
	if span == "*" {
		return low, top, nil
	}
	fromText, toText, isRange := strings.Cut(span, "-")
	from, err = strconv.Atoi(fromText)
	to = from
	if err == nil && isRange {
		to, err = strconv.Atoi(toText)
	} else if stepped {
		to = top
	}
	if err != nil || from < low || to > top || from > to {
		return 0, 0, fmt.Errorf("%q is not between %d and %d", span, low, top)
	}
	return from, to, nil
}

// horizon ends the search for a date that never comes, such as the 31st of February.
const horizon = 5 * 366 * 24 * time.Hour

func (c *cron) next(after time.Time) time.Time {
	t := after.UTC().Truncate(time.Minute).Add(time.Minute)
	for limit := t.Add(horizon); t.Before(limit); {
		switch {
		case !c.matchesDay(t):
			t = time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, time.UTC)
		case c.hours&(1<<t.Hour()) == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case c.minutes&(1<<t.Minute()) == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return t
}

func (c *cron) matchesDay(t time.Time) bool {
	if c.months&(1<<t.Month()) == 0 {
		return false
	}
	day := c.days&(1<<t.Day()) != 0
	weekday := c.weekdays&(1<<t.Weekday()) != 0
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}
