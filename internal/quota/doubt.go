package quota

const (
	doubtLeast = 2  // requests that are accepted although nothing should be left show that the reports are wrong
	doubtMost  = 64 // the same after refusals have shown that they were right
)

// A doubt weighs reports that nothing is left of a quota against requests that are sent after such a report, before its end, and are
// accepted. After two in a row the quota stops no request, until a refusal reports it. Then it takes twice as many as before.
type doubt struct {
	row  int8 // requests that were accepted
	need int8 // accepted requests that show that the reports are wrong; 0: doubtLeast
	on   bool // the reports are wrong
}

// accepted takes a request that was accepted although nothing should have been left, and how much is left by its response.
func (d *doubt) accepted(left int64) {
	if left > 0 {
		d.row = 0
		return
	}
	d.row++
	d.on = d.on || d.row >= max(d.need, doubtLeast)
	d.row = min(d.row, doubtMost)
}

// refuted takes a refusal that reports that nothing is left.
func (d *doubt) refuted() {
	if d.on {
		d.need = min(2*max(d.need, doubtLeast), doubtMost)
	}
	d.row, d.on = 0, false
}
