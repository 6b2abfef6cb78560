// Package fetch brings the files that machines boot onto a volume: it downloads releases, verifies them, extracts
// archives, and switches what is served in one step. See docs/design/decisions.md for the volume's layout.
//
// Not its job: serving (the package artifacts above it) and trusting: what is fetched is hostile until its digest
// was right, and an archive is even then.
package fetch

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/internal/setting"
)

// Config says what to fetch, and where to. It is the shape of the settings file, but for what nobody has to choose.
type Config struct {
	// Volume is the directory that holds everything; what is to be served is the directory "current" in it.
	Volume string `json:"volume"`
	// Sets are fetched and fail each on its own.
	Sets []Set `json:"sets"`
	// CheckEvery is how often releases are looked at again and files verified. Default: only at the start, and
	// after a failure.
	CheckEvery setting.Duration `json:"checkEvery,omitempty"`
	// Proxy is the HTTP proxy that everything is fetched through. Default: what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say.
	Proxy string `json:"proxy,omitempty"`
	// Parallel bounds the downloads at a time. Default 3.
	Parallel int `json:"-"`
	// StallTimeout ends an attempt in which no byte arrived for so long. Default 30s.
	StallTimeout setting.Duration `json:"-"`
	// Attempts is how many in a row may bring nothing before a download is given up. Default 5.
	Attempts int `json:"-"`
	// RetryFirst and RetryMost are the pauses between attempts, which double. Defaults 1s and 30s.
	RetryFirst setting.Duration `json:"-"`
	RetryMost  setting.Duration `json:"-"`
	// MaxSize bounds one artifact, and what one archive extracts to. Default 16Gi.
	MaxSize setting.Size `json:"maxSize,omitempty"`
	// MaxFiles bounds the files of one archive. Default 10000.
	MaxFiles int `json:"-"`
}

// Set is a release, or a list of files. URL, OCI or Files is given.
type Set struct {
	// Name labels the set in logs and metrics.
	Name string `json:"name"`
	// Path is the directory, below what is served, for the set's files. Default: the top.
	Path string `json:"path,omitempty"`

	// URL is where a release's checksum.txt and artifacts are.
	URL string `json:"url,omitempty"`
	// ChecksumsDigest pins checksum.txt itself ("sha256:..." or "sha512:...").
	ChecksumsDigest string `json:"checksumsDigest,omitempty"`
	// Arch is x86_64, aarch64 or both (the default); KernelVersion 5.10, 6.6 (the default, but 5.10 where the release
	// has no other) or both; Extension tar.gz (the default), iso or both: the names' parts by which HookOS releases are
	// chosen from.
	Arch          string `json:"arch,omitempty"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	Extension     string `json:"extension,omitempty"`
	// Names, where given, chooses by name instead: patterns as in path.Match ("hook_armbian-*").
	Names []string `json:"names,omitempty"`

	// OCI is an artifact in a registry: "registry.example.org/captain:v1", or with a digest. Its files are the
	// layers with a title, or those of them that Names choose.
	OCI string `json:"oci,omitempty"`

	// Files are single files.
	Files []File `json:"files,omitempty"`
}

// File is a file by URL.
type File struct {
	// URL is where it is.
	URL string `json:"url"`
	// Digest is what its bytes must have: "sha256:..." or "sha512:...".
	Digest string `json:"digest"`
	// Name is what it is served as. Default: the last part of the URL's path.
	Name string `json:"name,omitempty"`
	// Extract takes the files out of it: it is a .tar.gz, .tgz or .tar.
	Extract bool `json:"extract,omitempty"`
}

// removed are the fields that the file once had, with what to do about each.
var removed = map[string]string{
	"attempts": noChoice, "retryFirst": noChoice, "retryMost": noChoice, "stallTimeout": noChoice, "parallel": noChoice,
	"keepArchives": "leave it out: what is in an archive is served, and not the archive",
	"maxFiles":     "leave it out: maxSize bounds what an archive extracts to, and 10000 its files",
}

const noChoice = "leave it out: three downloads at a time are tried again until five attempts in a row brought nothing"

var setName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// Validate names every fault.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !path.IsAbs(c.Volume) {
		fault("volume: %q is not an absolute path", c.Volume)
	}
	if len(c.Sets) == 0 {
		fault("sets: there are none")
	}
	names := map[string]bool{}
	for i, set := range c.Sets {
		if names[set.Name] {
			fault("sets[%d].name: %q is taken by another set", i, set.Name)
		}
		names[set.Name] = true
		for _, err := range set.faults() {
			fault("sets[%d].%w", i, err)
		}
	}
	if c.CheckEvery < 0 {
		fault("checkEvery: below 0")
	}
	if err := checkURL(c.Proxy); c.Proxy != "" && err != nil {
		fault("proxy: %w", err)
	}
	if c.CheckEvery > 0 && c.CheckEvery.D() < 10*time.Second {
		fault("checkEvery: %s is too often: 10s is the least", c.CheckEvery)
	}
	return errors.Join(faults...)
}

func (s *Set) faults() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !setName.MatchString(s.Name) {
		fault("name: %q is not made of lower case letters, digits, dots and dashes", s.Name)
	}
	if s.Path != "" && !validName(s.Path) {
		fault("path: %q is no relative path of plain names", s.Path)
	}
	faults = append(faults, s.sourceFaults()...)
	for _, each := range []struct {
		field, value string
		known        []string
	}{
		{"arch", s.Arch, []string{"", archX86, archARM, both}},
		{"kernelVersion", s.KernelVersion, []string{"", kernel510, kernel66, both}},
		{"extension", s.Extension, []string{"", "tar.gz", "iso", both}},
	} {
		if !slices.Contains(each.known, each.value) {
			fault("%s: %q is not one of %s", each.field, each.value, strings.Join(each.known[1:], ", "))
		}
	}
	for i, pattern := range s.Names {
		if _, err := path.Match(pattern, "x"); err != nil {
			fault("names[%d]: %q is no pattern", i, pattern)
		}
	}
	if _, err := parseDigest(s.ChecksumsDigest); s.ChecksumsDigest != "" && err != nil {
		fault("checksumsDigest: %w", err)
	}
	return append(faults, s.fileFaults()...)
}

// sourceFaults says what is wrong with where the files come from.
func (s *Set) sourceFaults() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch {
	case s.URL == "" && s.OCI == "" && len(s.Files) == 0:
		fault("url: missing (or oci, or files)")
	case s.URL != "" && s.OCI != "", (s.URL != "" || s.OCI != "") && len(s.Files) > 0:
		fault("url: a set has either a url, or oci, or files")
	case s.OCI != "":
		if _, err := s.repository(nil); err != nil {
			fault("oci: %w", err)
		}
		if s.Arch+s.KernelVersion+s.Extension+s.ChecksumsDigest != "" {
			fault("oci: arch, kernelVersion, extension and checksumsDigest go with a url")
		}
	case s.URL != "":
		if err := checkURL(s.URL); err != nil {
			fault("url: %w", err)
		}
	case s.Arch+s.KernelVersion+s.Extension+s.ChecksumsDigest != "" || len(s.Names) > 0:
		fault("files: arch, kernelVersion, extension, names and checksumsDigest go with a url")
	}
	return faults
}

// fileFaults says what is wrong with the files of a set that names each.
func (s *Set) fileFaults() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	served := map[string]bool{}
	for i, file := range s.Files {
		if err := checkURL(file.URL); err != nil {
			fault("files[%d].url: %w", i, err)
		}
		if _, err := parseDigest(file.Digest); err != nil {
			fault("files[%d].digest: %w", i, err)
		}
		name := file.name()
		switch {
		case !validName(name):
			fault("files[%d].name: %q is no relative path of plain names", i, name)
		case served[name]:
			fault("files[%d].name: %q is taken by another file", i, name)
		case file.Extract && !extractable(name):
			fault("files[%d].extract: %q ends in none of .tar.gz, .tgz, .tar", i, name)
		}
		served[name] = true
	}
	return faults
}

func (f *File) name() string {
	if f.Name != "" {
		return f.Name
	}
	u, err := url.Parse(f.URL)
	if err != nil {
		return ""
	}
	return path.Base(u.Path)
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no URL", text)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q begins with neither http:// nor https://", u.Redacted())
	case u.Host == "":
		return fmt.Errorf("%q names no host", u.Redacted())
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Parallel = cmp.Or(c.Parallel, 3)
	c.Attempts = cmp.Or(c.Attempts, 5)
	c.StallTimeout = cmp.Or(c.StallTimeout, setting.Duration(30*time.Second))
	c.RetryFirst = cmp.Or(c.RetryFirst, setting.Duration(time.Second))
	c.RetryMost = cmp.Or(c.RetryMost, setting.Duration(30*time.Second))
	c.MaxSize = cmp.Or(c.MaxSize, 16<<30)
	c.MaxFiles = cmp.Or(c.MaxFiles, 10000)
	return c
}

// backoff is the pauses between attempts.
func (c Config) backoff() backoff.Backoff {
	return backoff.Backoff{First: c.RetryFirst.D(), Most: c.RetryMost.D()}
}

// digest is "sha256:..." or "sha512:...", in lower case.
type digest string

func parseDigest(text string) (digest, error) {
	algorithm, sum, _ := strings.Cut(text, ":")
	want := map[string]int{"sha256": 32, "sha512": 64}[algorithm]
	raw, err := hex.DecodeString(sum)
	if want == 0 || err != nil || len(raw) != want {
		return "", fmt.Errorf("%q is neither sha256: with 64 hexadecimal digits nor sha512: with 128", text)
	}
	return digest(strings.ToLower(text)), nil
}
