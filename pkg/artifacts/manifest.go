package artifacts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"
)

// ManifestName is the manifest's file in a generation. Names that begin with a dot are not served.
const ManifestName = ".manifest"

// Manifest says what a generation holds.
type Manifest struct {
	// Created is when the generation was published.
	Created time.Time `json:"created"`
	// Sets are the sets by name.
	Sets map[string]Set `json:"sets,omitempty"`
	// Files are the files by their slash-separated path below the generation.
	Files map[string]File `json:"files,omitempty"`
}

// Set is where the files of one set came from.
type Set struct {
	// Release identifies the release: the digest of its list of checksums, or of the configured files.
	Release string `json:"release"`
	// Artifacts are the digests ("sha512:...") of what was fetched, by name.
	Artifacts map[string]string `json:"artifacts"`
}

// File is one file of a generation.
type File struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Set and Artifact name what the file was fetched as or extracted from.
	Set      string `json:"set"`
	Artifact string `json:"artifact"`
}

// identify is the ETag of a file of a generation, by the manifest's digest where the manifest has the file. A file
// whose size is not the manifest's is errDamaged. The manifest may be nil.
func (m *Manifest) identify(name string, size int64, modified time.Time) (etag string, known bool, err error) {
	if m != nil {
		if entry, ok := m.Files[name]; ok {
			if entry.Size != size {
				return "", true, errDamaged
			}
			return `"` + entry.SHA256 + `"`, true, nil
		}
	}
	return `"` + strconv.FormatInt(size, 16) + "-" + strconv.FormatInt(modified.UnixNano(), 16) + `"`, false, nil
}

// errManifest is a manifest that is damaged.
var errManifest = errors.New("manifest is damaged")

const maxManifest = 16 << 20

// Encode writes the manifest as it is kept: a line with the SHA-256 of the rest, then JSON.
func (m *Manifest) Encode() ([]byte, error) {
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("failed to encode manifest: %w", err)
	}
	sum := sha256.Sum256(body)
	return append([]byte(hex.EncodeToString(sum[:])+"\n"), body...), nil
}

// ReadManifest reads a generation's manifest. A directory without one is an fs.ErrNotExist.
func ReadManifest(dir fs.FS) (*Manifest, error) {
	f, err := dir.Open(ManifestName)
	if err != nil {
		return nil, fmt.Errorf("failed to open manifest: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, fmt.Errorf("failed to read manifest: %w", err)
	}
	return parseManifest(text)
}

func parseManifest(text []byte) (*Manifest, error) {
	line, body, _ := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(body)
	if string(line) != hex.EncodeToString(sum[:]) {
		return nil, errManifest
	}
	m := &Manifest{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, errors.Join(errManifest, err)
	}
	for name := range m.Files {
		if !fs.ValidPath(name) {
			return nil, fmt.Errorf("%w: it names %q", errManifest, name)
		}
	}
	return m, nil
}
