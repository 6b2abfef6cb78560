package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/netip"
	"path"
	"strings"
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

// markup fills a template; it is empty, and the log says why, where that fails, which tests exclude.
func (s *Server) markup(name string, data any) string {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		s.options.Logger.Error("failed to render boots page", "template", name, "error", err)
		return ""
	}
	return b.String()
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
