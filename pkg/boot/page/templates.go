package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"path"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFS embed.FS

var templates = template.Must(template.ParseFS(templateFiles, "templates/*.html"))

// staticFiles are the style sheet, the script and the icon by name; staticTag changes with them.
var staticFiles, staticTag = readStatic()

func readStatic() (files map[string][]byte, tag string) {
	files = make(map[string][]byte)
	sum := sha256.New()
	names, _ := fs.Glob(staticFS, "static/*") // what is embedded is there
	for _, name := range names {
		text, _ := staticFS.ReadFile(name)
		files[path.Base(name)] = text
		sum.Write(text)
	}
	return files, hex.EncodeToString(sum.Sum(nil)[:8])
}
