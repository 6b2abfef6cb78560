package certs

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheckFiles(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	good := a.pair(t, dir, "good", "ECDSA", "tink.example.org", "*.files.example.org")
	other := a.pair(t, dir, "other", "ECDSA", "x")
	a.age = 2 * time.Hour
	old := a.pair(t, dir, "old", "ECDSA", "tink.example.org")
	ca, rubbish := write(t, dir, "ca.crt", a.pem), write(t, dir, "rubbish", []byte("x"))
	none := filepath.Join(dir, "none")
	tests := map[string]struct {
		config Config
		hosts  []string
		want   []string // how the faults begin
	}{
		"good": {
			Config{Certificates: []Pair{good}, ClientCA: ca}, []string{"TINK.example.org", "*.files.example.org", "a.files.example.org", "*"},
			nil,
		},
		"no files": {
			Config{Certificates: []Pair{{none, none}, good}, ClientCA: none}, []string{"elsewhere.example.org"},
			[]string{"certificates[0].certificate: failed to read file", "clientCA: failed to read file"},
		},
		"another's key": {
			Config{Certificates: []Pair{{good.Certificate, other.Key}}}, nil, []string{"certificates[0].certificate: failed to load " + good.Certificate},
		},
		"expired": {
			Config{Certificates: []Pair{good, old}}, []string{"tink.example.org", "other.example.org"},
			[]string{
				"certificates[1].certificate: " + old.Certificate + " expired on ",
				`certificates: none is for host "other.example.org"`,
			},
		},
		"rubbish": {
			Config{Certificates: []Pair{{rubbish, good.Key}}, ClientCA: rubbish}, nil,
			[]string{"certificates[0].certificate: failed to load", "clientCA: failed to parse"},
		},
		"another name": {
			Config{Certificates: []Pair{good}}, []string{"files.example.org", "*.example.org"},
			[]string{`certificates: none is for host "files.example.org"`, `certificates: none is for host "*.example.org"`},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { compare(t, test.config.CheckFiles(test.hosts), test.want) })
	}
	backend := Backend{CA: ca, Certificate: good.Certificate, Key: good.Key}
	compare(t, backend.CheckFiles(), nil)
	backend = Backend{CA: rubbish, Certificate: good.Certificate, Key: none}
	compare(t, backend.CheckFiles(), []string{"ca: failed to parse", "certificate: failed to read file"})
	backend = Backend{CA: ca, Certificate: old.Certificate, Key: old.Key}
	compare(t, backend.CheckFiles(), []string{"certificate: " + old.Certificate + " expired on "})
}

func compare(t *testing.T, err error, want []string) {
	t.Helper()
	var got []string
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	for i := range got {
		if i < len(want) && strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
