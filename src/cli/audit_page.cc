// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/audit_text.h"
#include "cli/tensor_file.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

// The colours of the report (src/report/page/page.css); light or dark as the system is.
constexpr const char* kHead = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>presum audit</title>
<style>
:root { --paper: #f6f7f9; --card: #ffffff; --ink: #1a1f26; --quiet: #59636e; --grid: #dfe4ea; --blue: #0b62a8; --orange: #d9720a; --warning: #a85400; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1a2028; --ink: #e8ecf1; --quiet: #a0abb8; --grid: #2b333d; --blue: #63b3f2; --orange: #f2a03d; --warning: #f2a03d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 10px 20px 32px; }
h1 { font-size: 26px; line-height: 1.2; margin: 4px 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 0 0 6px; max-width: 95ch; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: 13.5px; }
.verdict { font-size: 19px; line-height: 1.4; }
.finding { color: var(--warning); font-weight: 600; }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 12px; padding: 16px 18px; margin: 14px 0; }
svg { width: 100%; height: auto; display: block; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .quiet { fill: var(--quiet); font-size: 12px; }
.bar { fill: var(--blue); } .bar.strong { fill: var(--orange); } .rule { stroke: var(--grid); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 7px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; } td.words { text-align: left; color: var(--quiet); white-space: normal; min-width: 11em; }
@media print { .card { break-inside: avoid; } }
</style>
</head>
<body>
<main>
<p><b>presum</b> <span class="quiet">what the workers disagree about before the sum hides it</span></p>
)html";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct BarLine {
  std::string label;
  double length = 0;  // of 1
  std::string value;
  bool strong = false;
};

constexpr int kLabelWidth = 200;  // at least
constexpr int kCharacterWidth = 7;
constexpr int kValueWidth = 120;
constexpr int kBarWidth = 560;
constexpr int kLineHeight = 26;

struct Tick {
  double at = 0;  // of 1
  std::string label;
};

std::string superscript(int exponent) {
  static constexpr const char* kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string out = exponent < 0 ? "⁻" : "";
  for (const char c : std::to_string(std::abs(exponent))) out += kDigits[c - '0'];
  return out;
}

// "6.9×10⁻⁸"; "0.031" from a hundredth to below a thousand.
std::string scientific(double value) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return "∞";
  if (value == 0 || (value >= 0.01 && value < 1000)) return fmt::format("{:.3g}", value);
  const std::string text = fmt::format("{:.1e}", value);  // "6.9e-08"
  const auto e = text.find('e');
  return fmt::format("{}×10{}", text.substr(0, e), superscript(std::stoi(text.substr(e + 1))));
}

std::string distance(std::uint64_t count) {
  return count > 99'999 ? scientific(static_cast<double>(count)) : counted(count);
}

// Horizontal bars under a scale.
std::string bars(const std::string& title, const std::vector<BarLine>& lines,
                 const std::vector<Tick>& ticks) {
  const int height = kLineHeight * static_cast<int>(lines.size()) + 26;
  int labels = kLabelWidth;
  for (const BarLine& line : lines) {
    labels = std::max(labels, kCharacterWidth * static_cast<int>(line.label.size() + 2));
  }
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)",
                                labels + kBarWidth + kValueWidth, height, escaped(title));
  for (const Tick& tick : ticks) {
    const double x = labels + kBarWidth * tick.at;
    svg += fmt::format(
        R"(<line class="rule" x1="{0:.1f}" x2="{0:.1f}" y1="18" y2="{1}"/><text class="quiet" x="{0:.1f}" y="12" text-anchor="middle">{2}</text>)",
        x, height, tick.label);
  }
  int y = 22;
  for (const BarLine& line : lines) {
    const double width = kBarWidth * std::clamp(line.length, 0.0, 1.0);
    svg += fmt::format(
        R"(<text x="{}" y="{}" text-anchor="end">{}</text><rect class="bar{}" x="{}" y="{}" width="{:.1f}" height="16" rx="3"/><text x="{:.1f}" y="{}">{}</text>)",
        labels - 10, y + 13, escaped(line.label), line.strong ? " strong" : "", labels, y, width,
        labels + width + 7, y + 13, line.value);
    y += kLineHeight;
  }
  return svg + "</svg>\n";
}

std::string card(const std::string& title, const std::string& note, const std::string& body) {
  return fmt::format("<section class=\"card\"><h2>{}</h2><p class=\"quiet\">{}</p>\n{}</section>\n",
                     title, note, body);
}

std::vector<std::pair<std::string, const audit::Measures*>> rows_of(const AuditReport& report) {
  std::vector<std::pair<std::string, const audit::Measures*>> rows;
  if (report.actual) rows.emplace_back("your result", &report.actual->comparison.measures);
  for (const auto& row : report.survey.rows) rows.emplace_back(row.name, &row.measures);
  return rows;
}

const std::vector<Tick>& share_ticks() {
  static const std::vector<Tick> ticks = {
      {0, "0"}, {0.25, "25 %"}, {0.5, "50 %"}, {0.75, "75 %"}, {1, "100 %"}};
  return ticks;
}

std::string differ_chart(const AuditReport& report) {
  std::vector<BarLine> lines;
  for (const auto& [name, m] : rows_of(report)) {
    lines.push_back({name, m->elements == 0 ? 0 : m->differing_share(),
                     percent(m->differing, m->elements), name == "your result"});
  }
  return card("How many elements differ from the exact sum",
              "The exact sum is rounded once: the nearest number that the format has.",
              bars("share of elements that differ, by way", lines, share_ticks()));
}

std::string change_chart(const AuditReport& report) {
  std::vector<BarLine> lines;
  for (const auto& pair : report.survey.pairs) {
    const double share = static_cast<double>(pair.differing) /
                         static_cast<double>(std::max<std::uint64_t>(report.survey.elements, 1));
    lines.push_back({pair.name, share, percent(pair.differing, report.survey.elements), false});
  }
  return card("How many elements change with the order",
              "The same numbers, added in two orders, or split over workers in two ways.",
              bars("share of elements that change", lines, share_ticks()));
}

// Relative errors from 10^-18 (or 10^-9, where that is enough) to 1 on a logarithmic scale.
std::string error_chart(const AuditReport& report) {
  const int least = report.dtype == Dtype::kF64 ? -18 : -9;
  std::vector<Tick> ticks;
  ticks.reserve(10);
  for (int i = 0; i < 9; ++i) {
    ticks.push_back({i / 9.0, "10" + superscript(least * (9 - i) / 9)});
  }
  ticks.push_back({1, "1"});
  std::vector<BarLine> lines;
  for (const auto& [name, m] : rows_of(report)) {
    const double error = m->relative_l2();
    const double length = error > 0 ? 1 - std::log10(error) / least : 0;
    lines.push_back({name, length, scientific(error), name == "your result"});
  }
  return card("How far the sums are off",
              "Relative L2 error against the exact value, before rounding. Even the exact sum has "
              "that of its one rounding.",
              bars("relative L2 error, by way", lines, ticks));
}

// Which ways to add give the elements of the result bit for bit.
std::string arithmetic_chart(const AuditReport& report) {
  const auto& inferred = report.actual->comparison.inferred;
  if (inferred.unrelated || report.actual->either()) return {};
  std::vector<BarLine> lines;
  for (const auto& [arithmetic, share, text] : hypothesis_lines(inferred)) {
    lines.push_back({arithmetic, share, text, lines.empty()});
  }
  const std::string pieces = pieces_line(inferred);
  return card("Which arithmetic gives these bits",
              "Share of the elements that each way to add gives bit for bit, where it was tried.",
              bars("share of elements reproduced, by arithmetic", lines, share_ticks()) +
                  (pieces.empty() ? "" : "<p class=\"quiet\">" + escaped(pieces) + "</p>\n"));
}

std::string measures_table(const AuditReport& report) {
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>way</th><th>differ</th><th>relative "
      "L2</th><th>largest error/&Sigma;|x|</th><th>ulps 50 %</th><th>90 %</th><th>99 "
      "%</th><th>max</th><th></th></tr></thead><tbody>\n";
  std::vector<std::string> words;
  if (report.actual) words.push_back(report.actual->file);
  for (const auto& row : report.survey.rows) words.push_back(row.words);
  std::size_t at = 0;
  for (const auto& [name, m] : rows_of(report)) {
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}"
        "</td><td class=\"words\">{}</td></tr>\n",
        escaped(name), percent(m->differing, m->elements), scientific(m->relative_l2()),
        scientific(m->error_max), distance(m->ulps.percentile(0.5)),
        distance(m->ulps.percentile(0.9)), distance(m->ulps.percentile(0.99)),
        distance(m->ulps.largest()), escaped(words[at++]));
  }
  return card("In numbers",
              "A unit in the last place (ulp) is the distance to the next number. Where values "
              "cancel, a small error is many of them: read the relative error first.",
              html + "</tbody></table></div>\n");
}

// What the error of the result is beside that of the best possible one.
std::string error_sentence(const AuditReport& report) {
  const audit::Measures& m = report.actual->comparison.measures;
  const double best = report.survey.rows.back().measures.relative_l2();
  return fmt::format(
      "Relative error {} (a correctly rounded sum has {}); {} of the elements are not the "
      "correctly rounded value.",
      scientific(m.relative_l2()), scientific(best), percent(m.differing, m.elements));
}

std::string heading(const std::string& title, const std::string& verdict) {
  return fmt::format("<h1>{}</h1>\n<p class=\"verdict\">{}</p>\n", title, escaped(verdict));
}

const char* division_words(Division division) {
  switch (division) {
    case Division::kBeforeMultiply:
      return "every value times the rounded 1/W, before adding";
    case Division::kBeforeDivide:
      return "every value divided by W, before adding";
    case Division::kAfterMultiply:
      return "the sum times the rounded 1/W";
    case Division::kAfterDivide:
      return "the sum divided by W";
    case Division::kOnce:
      return "the exact mean, rounded once";
    case Division::kNone:
    case Division::kUnknown:
      break;
  }
  return "none";
}

std::string answer(const AuditReport& report) {
  std::string html = heading("What did your all-reduce do?", audit_answer(report) + ".");
  for (const std::string& finding : audit_findings(report)) {
    html += fmt::format("<p class=\"finding\">Finding: {}</p>\n", escaped(finding));
  }
  const auto& inferred = report.actual->comparison.inferred;
  html += fmt::format("<p>{}</p>\n", error_sentence(report));
  if (inferred.unrelated || report.actual->either() || inferred.division == Division::kUnknown)
    return html;
  return html + fmt::format("<p>Division: {}.</p>\n", division_words(inferred.division));
}

}  // namespace

std::string audit_page(const AuditReport& report) {
  std::string html = kHead;
  const bool judges = report.actual.has_value();
  html +=
      judges ? answer(report) : heading("Does the order of a sum matter?", audit_verdict(report));
  html += fmt::format("<p class=\"quiet\">{}, {} elements</p>\n", escaped(report.source),
                      counted(report.survey.elements));
  if (judges) {
    html += arithmetic_chart(report) + error_chart(report) + differ_chart(report) +
            change_chart(report);
  } else {
    html += differ_chart(report) + change_chart(report) + error_chart(report);
  }
  return html + measures_table(report) + "</main>\n</body>\n</html>\n";
}

}  // namespace presum::cli
