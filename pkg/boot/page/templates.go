package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/netip"
	"path"
	"time"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFS embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"label": StepLabel, "bytes": Bytes, "at": stampAt, "severity": severityClass, "amount": amount,
	"took": func(from, to time.Time) string { return Duration(to.Sub(from)) },
	"peer": func(a netip.AddrPort) string {
		if a.Port() == 0 {
			return a.Addr().String()
		}
		return a.String()
	},
}).ParseFS(templateFiles, "templates/*.html"))

func markup(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	err := templates.ExecuteTemplate(&b, name, data)
	return b.Bytes(), err
}

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
