package allowance

import "fmt"

func (m *Meter) Debug(now int64) string {
	s := fmt.Sprintf("held %.1f open %d ", float64(m.held-now)/1e9, m.sends.open)
	for _, p := range m.parts {
		s += fmt.Sprintf("\n      [%s bucket %v(%.1f) left %.0f/%.0f free %.0f fit %.2f %.2f rate %.0f/s ends %.1f late %.1f dry %v newest -%d] ", p.name, p.isBucket(), p.refills, p.left, p.limit, p.free(now, &m.sends), p.fit.sent, p.fit.ended, p.rate*1e9, float64(p.ends-now)/1e9, float64(p.late)/1e9, p.dry, m.sends.next-p.newest)
	}
	h := &m.hidden
	if h.known {
		s += fmt.Sprintf("hidden rate %.0f window %.0f ends %.1f at -%.1f spent %.0f", h.rate*1e9, h.window, float64(h.ends-now)/1e9, float64(now-h.at)/1e9, m.sends.charged()-h.then)
	}
	return s
}
