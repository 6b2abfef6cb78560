package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type sample struct {
	Settings
	Servers []string      `split_words:"true" required:"true" desc:"where to relay to"`
	MaxHops int           `split_words:"true" default:"4" desc:"hop limit"`
	Wait    time.Duration `split_words:"true" default:"3s" desc:"how long to wait"`
	Source  netip.Addr    `split_words:"true" desc:"address of replies"`
	Quiet   bool          `desc:"say less"`
	Trusted []netip.Prefix
}

func (s *sample) Validate() error {
	var faults []error
	if s.MaxHops > 16 {
		faults = append(faults, errors.New("SAMPLE_MAX_HOPS: above 16"))
	}
	if s.Wait < 0 {
		faults = append(faults, errors.New("SAMPLE_WAIT: negative"))
	}
	return errors.Join(faults...)
}

func TestParseEnv(t *testing.T) {
	tests := map[string]struct {
		env    map[string]string
		want   sample
		faults []string
	}{
		"defaults": {
			env: map[string]string{"SAMPLE_SERVERS": "a,b"},
			want: sample{
				Settings: Settings{LogLevel: slog.LevelInfo},
				Servers:  []string{"a", "b"}, MaxHops: 4, Wait: 3 * time.Second,
			},
		},
		"set": {
			env: map[string]string{
				"SAMPLE_SERVERS": "a", "SAMPLE_MAX_HOPS": "16", "SAMPLE_WAIT": "1m", "SAMPLE_SOURCE": "192.0.2.1",
				"SAMPLE_LOG_LEVEL": "debug", "OTHER_UNKNOWN": "x",
			},
			want: sample{
				Settings: Settings{LogLevel: slog.LevelDebug},
				Servers:  []string{"a"}, MaxHops: 16, Wait: time.Minute, Source: netip.MustParseAddr("192.0.2.1"),
			},
		},
		"empty counts as not set": {
			env: map[string]string{"SAMPLE_SERVERS": "a", "SAMPLE_WAIT": "", "SAMPLE_LOG_LEVEL": ""},
			want: sample{
				Settings: Settings{LogLevel: slog.LevelInfo},
				Servers:  []string{"a"}, MaxHops: 4, Wait: 3 * time.Second,
			},
		},
		"every fault is named": {
			env: map[string]string{
				"SAMPLE_MAX_HOP": "3", "SAMPLE_FROBNICATE": "1", "SAMPLE_WAIT": "soon", "SAMPLE_SOURCE": "nowhere",
				"SAMPLE_LOG_FORMAT": "xml", "SAMPLE_MAX_HOPS": "99", "SAMPLE_LOG_LEVEL": "loud", "SAMPLE_QUIET": "perhaps",
				"SAMPLE_TRUSTED": "10.0.0.0/8,x",
			},
			faults: []string{
				"SAMPLE_MAX_HOP: no such variable (did you mean SAMPLE_MAX_HOPS?)",
				"SAMPLE_FROBNICATE: no such variable",
				`SAMPLE_WAIT="soon": no duration: write it with its unit, as in 30s or 1h30m`,
				`SAMPLE_SOURCE="nowhere": not an IP address`,
				`SAMPLE_LOG_LEVEL="loud": none of debug, info, warn, error`,
				`SAMPLE_QUIET="perhaps": neither true nor false`,
				`SAMPLE_TRUSTED="10.0.0.0/8,x": no prefix: write it as`,
				"SAMPLE_LOG_FORMAT: is no variable any more: leave it out: lines are text on a terminal, and JSON elsewhere",
				"SAMPLE_SERVERS: required, and not set",
				"SAMPLE_MAX_HOPS: above 16",
				"10 faults",
			},
		},
		"impossible values, each once": {
			env:    map[string]string{"SAMPLE_SERVERS": "a", "SAMPLE_MAX_HOPS": "17", "SAMPLE_WAIT": "-1s"},
			faults: []string{"2 faults", "SAMPLE_MAX_HOPS: above 16", "SAMPLE_WAIT: negative"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range test.env {
				t.Setenv(key, value)
			}
			var got sample
			err := ParseEnv("SAMPLE", &got)
			if len(test.faults) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("settings differ (-want +got):\n%s", diff)
				}
				return
			}
			if err == nil {
				t.Fatal("got no error")
			}
			for _, fault := range test.faults {
				if strings.Count(err.Error(), fault) != 1 {
					t.Errorf("want %q once in:\n%v", fault, err)
				}
			}
		})
	}
}

func TestProgramStart(t *testing.T) {
	tests := map[string]struct {
		args   []string
		env    map[string]string
		code   int
		done   bool
		stdout string
		stderr string
	}{
		"runs":          {env: map[string]string{"SAMPLE_SERVERS": "a"}},
		"help":          {args: []string{"--help"}, done: true, stdout: "SAMPLE_SERVERS"},
		"help default":  {args: []string{"-h"}, done: true, stdout: "hop limit"},
		"version":       {args: []string{"--version"}, done: true, stdout: "sample "},
		"unknown flag":  {args: []string{"--frob"}, code: 2, done: true, stderr: "-frob (see sample --help)"},
		"argument":      {args: []string{"x"}, code: 2, done: true, stderr: `unexpected argument "x"`},
		"wrong setting": {code: 1, done: true, stderr: "sample: failed to read settings: SAMPLE_SERVERS: required"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range test.env {
				t.Setenv(key, value)
			}
			var stdout, stderr bytes.Buffer
			program := Program{Name: "sample", Summary: "a sample", Prefix: "SAMPLE", Config: &sample{}}
			code, done := program.Start(test.args, &stdout, &stderr)
			if code != test.code || done != test.done {
				t.Errorf("got code %d, done %t; want %d, %t", code, done, test.code, test.done)
			}
			if !strings.Contains(stdout.String(), test.stdout) {
				t.Errorf("want %q in stdout:\n%s", test.stdout, stdout.String())
			}
			if !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("want %q in stderr:\n%s", test.stderr, stderr.String())
			}
			if test.stderr == "" && stderr.Len() > 0 {
				t.Errorf("got stderr:\n%s", stderr.String())
			}
		})
	}
}
