// Package pictures draws docs/which-limit.svg, docs/refusal.svg and docs/load.svg:
//
//	go test ./internal/lab/pictures -update
//
// The first is compared with the file. The others are drawn from runs in fake time, which differ a little, so their tests check what the pictures
// say.
package pictures

import (
	"fmt"
	"html"
	"strings"
)

// A canvas collects the elements of a picture.
type canvas struct {
	width, height int
	label         string // for those who do not see it
	b             strings.Builder
}

const style = `text{font:13px system-ui,sans-serif;fill:#57606a}.b{font-weight:600;fill:#1f2328}.c{font:12px ui-monospace,monospace;fill:#0969da}` +
	`.ok{fill:#2da44e}.no{fill:#cf222e}.wait{fill:#d0d7de}.mark{fill:#8250df}.line{fill:none;stroke:#8c959f}` +
	`.curve{fill:none;stroke-width:2}.curve.ok{stroke:#2da44e}.curve.no{stroke:#cf222e}.curve.mark{stroke:#8250df}.code{fill:#0969da}.curve.code{fill:none;stroke:#0969da;stroke-dasharray:6 4}.curve.ok,.curve.no,.curve.mark{fill:none}` +
	"\n@media(prefers-color-scheme:dark){text{fill:#9198a1}.b{fill:#e6edf3}.c{fill:#58a6ff}.ok{fill:#3fb950}.no{fill:#f85149}.wait{fill:#30363d}.mark{fill:#a371f7}}"

// text writes at the left of x, or with another anchor.
func (c *canvas) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&c.b, "<text x=\"%.0f\" y=\"%.0f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, html.EscapeString(text))
}

func (c *canvas) rect(class string, x, y, width, height float64) {
	fmt.Fprintf(&c.b, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class, x, y, width, height)
}

func (c *canvas) path(class, d string) {
	fmt.Fprintf(&c.b, "<path class=\"%s\" d=\"%s\"/>\n", class, d)
}

func (c *canvas) String() string {
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %[1]d %[2]d\" width=\"%[1]d\" height=\"%[2]d\" role=\"img\" aria-label=\"%[3]s\">\n<style>%[4]s</style>\n%[5]s</svg>\n",
		c.width, c.height, html.EscapeString(c.label), style, c.b.String())
}
