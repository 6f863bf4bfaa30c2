(() => {
  "use strict"
  const $ = selector => document.querySelector(selector)
  const link = state => document.documentElement.dataset.link = state
  let stream, timer

  // Makes the node a like b, and keeps what is equal, so that a selection stays. Sections move by their id.
  const patch = (a, b) => {
    if (b.className === "keep") return
    if (a.nodeName !== b.nodeName) return a.replaceWith(b)
    if (b.dataset?.open !== a.dataset?.open) a.open = b.open // it needs attention now, or no longer
    if (!b.attributes) return a.data === b.data || (a.data = b.data)
    for (const { name } of [...a.attributes]) if (name !== "open" && !b.hasAttribute(name)) a.removeAttribute(name)
    for (const { name, value } of b.attributes) if (name !== "open" && a.getAttribute(name) !== value) a.setAttribute(name, value)
    const now = [...b.childNodes]
    now.forEach((n, i) => {
      let old = a.childNodes[i]
      if (old && (old.id ?? "") !== (n.id ?? "")) {
        old = n.id && [...a.childNodes].find(c => c.id === n.id)
        a.insertBefore(old || n, a.childNodes[i])
        if (!old) return
      }
      old ? patch(old, n) : a.append(n)
    })
    while (a.childNodes.length > now.length) a.lastChild.remove()
  }
  const show = html => {
    const next = new DOMParser().parseFromString(html, "text/html")
    patch($("main"), next.querySelector("main"))
    link("live")
  }

  const after = (ms, f) => { clearTimeout(timer); timer = setTimeout(f, ms) }
  const connect = () => {
    if (document.hidden) return
    stream?.close()
    stream = new EventSource("events" + location.search)
    stream.onmessage = e => { show("<main>" + e.data + "</main>"); after(5000, poll) }
    stream.onerror = poll
    after(5000, poll)
  }
  // Where no stream gets through, the page itself is fetched before the next try.
  const poll = async () => {
    stream.close()
    after(2000, connect)
    try {
      const page = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(1900) })
      if (!page.ok) throw page.status
      show(await page.text())
    } catch {
      link("lost")
    }
  }
  addEventListener("visibilitychange", () => {
    if (document.hidden) { stream.close(); clearTimeout(timer) } else connect()
  })

  const form = $("form")
  const ask = () => {
    history.replaceState(null, "", "?" + new URLSearchParams(new FormData(form)))
    connect()
  }
  form.onsubmit = e => { e.preventDefault(); ask() }
  let typing
  form.oninput = () => { clearTimeout(typing); typing = setTimeout(ask, 200) }

  // A navigator has a clipboard only on a secure connection.
  const copy = async text => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text)
    const area = document.body.appendChild(document.createElement("textarea"))
    area.value = text
    area.select()
    document.execCommand("copy")
    area.remove()
  }
  addEventListener("click", async e => {
    const a = e.target.closest("a.copy")
    if (!a || e.ctrlKey || e.metaKey) return
    e.preventDefault()
    const url = new URL(a.href)
    for (const [k, v] of new URLSearchParams(location.search)) url.searchParams.set(k, v)
    try {
      await copy(await (await fetch(url)).text())
      a.textContent = "copied"
      setTimeout(() => a.textContent = "copy as text", 1500)
    } catch { location = url }
  })

  // The value of a chart at the pointer.
  const tip = $("#tip")
  const point = e => {
    const chart = e.target.closest?.("svg.line")
    tip.hidden = !chart
    if (!chart) return
    const { most, unit, from, to } = chart.dataset, box = chart.getBoundingClientRect()
    const x = (e.clientX - box.left) / box.width * 240
    const all = [...chart.lastChild.getAttribute("d").matchAll(/(M?)([\d.]+),([\d.]+)/g)].map(m => ({ gap: m[1], x: +m[2], y: +m[3] }))
    const i = all.findIndex(p => p.x >= x), a = all.at(i < 0 ? -1 : Math.max(0, i - 1)), b = all.at(i)
    const near = x - a.x < b.x - x ? a : b
    const inside = a.x <= x && x <= b.x && !b.gap
    const at = new Date(+from + (to - from) * (inside && a.y === b.y ? x : near.x) / 240)
    const value = inside || Math.abs(near.x - x) < 3 ? +((40 - near.y) / 40 * most).toPrecision(3) + unit : "not known"
    tip.textContent = at.toISOString().slice(11, 19) + "  " + value
    tip.style.left = Math.min(e.clientX + 12, innerWidth - 150) + "px"
    tip.style.top = box.top - 30 + "px"
  }
  addEventListener("pointermove", point)
  addEventListener("pointerdown", point)
  connect()
})()
