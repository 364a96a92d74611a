// Text that only grows, and where in it each n-gram occurs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/types.h"
#include "spec/gram_table.h"

namespace agentkv {

// Text lies in documents that are appended to and never changed, so nothing has to be un-indexed: a line that leaves
// the text it has in common with another goes on in a document of its own, which repeats a few tokens of context. The
// occurrences of an n-gram are linked from the newest to the oldest, as in LZ77 compressors, for n-grams of one or more
// lengths. When there is more text than allowed, the oldest documents are forgotten.
class NgramIndex {
 public:
  using DocumentId = std::uint32_t;
  static constexpr DocumentId kNone = UINT32_MAX;
  static constexpr Pos kDocumentTokens = 1024;  // then a line goes on in another document
  static constexpr std::int64_t kLeastTokens = 4 * std::int64_t{kDocumentTokens};  // that max_tokens may be
  static constexpr std::size_t kMaxLengths = 8;

  // The first `length` tokens of the text that ends in a document; copying a line shares its text.
  struct Line {
    DocumentId document = kNone;
    Pos length = 0;
  };
  // A token of a document.
  struct Place {
    DocumentId document = kNone;
    std::uint32_t offset = 0;
    bool operator==(const Place&) const = default;
  };
  // An earlier occurrence of the last `length` tokens of a query, or of another spelling of the last one; it lies at
  // `end`.
  struct Match {
    Place end;
    std::int32_t length = 0;
  };

  // N-grams of these lengths are indexed, at most kMaxLengths, ascending from 1; matches are followed up to max_ngram
  // tokens, no fewer than the longest. spellings: [tokens] a token that is alike, so that a single token, where nothing
  // longer agrees, is also found where it is spelled otherwise; those beyond it are like no other.
  NgramIndex(std::vector<std::int32_t> lengths, std::int32_t max_ngram, std::int64_t max_tokens,
             std::vector<Token> spellings = {});

  // A line that goes on as its document already does only moves along it.
  void extend(Line& line, std::span<const Token> tokens);
  // How many tokens of `text` the line begins with; 0 where part of its text was forgotten.
  Pos common_prefix(const Line& line, std::span<const Token> text) const;
  // The newest max_chain occurrences of the longest indexed n-gram that `query` ends with, newest first.
  void find(std::span<const Token> query, std::int32_t max_chain, std::vector<Match>& matches);
  // What follows a place in its document, and whether the line ends where this document does.
  std::span<const Token> after(Place place) const;
  bool ends_at(const Line& line, DocumentId document) const;

  std::int32_t max_ngram() const { return max_ngram_; }
  std::int64_t tokens_held() const { return held_; }
  std::int64_t tokens_indexed() const { return indexed_; }  // ever
  // Look-ups of n-grams, occurrences visited and tokens compared, ever.
  std::int64_t steps() const { return steps_; }
  std::size_t memory_bytes() const;

  // The document that is begun next; those from one on, and the part of each that holds n-grams of the longest length
  // which no earlier text had.
  DocumentId next_document() const { return oldest_ + static_cast<DocumentId>(documents_.size()); }
  std::vector<std::vector<Token>> new_text(DocumentId from) const;

 private:
  struct Document {
    DocumentId parent;  // what its line was in before
    Pos first;          // position of tokens[0] in that line
    Pos own;            // and of the first token that does not repeat the parent's
    std::vector<Token> tokens;
    // [tokens, lengths] where the n-gram of each length that ends at a token occurred before
    std::vector<Place> previous;
    // The first and the last token at which an n-gram of the longest length ends that was new.
    std::uint32_t new_begin = UINT32_MAX;
    std::uint32_t new_last = 0;

    Pos end() const { return first + static_cast<Pos>(tokens.size()); }
  };
  using Keys = std::array<std::uint64_t, kMaxLengths>;

  bool alive(DocumentId id) const { return id != kNone && id >= oldest_; }
  Document& at(DocumentId id) { return documents_[id - oldest_]; }
  const Document& at(DocumentId id) const { return documents_[id - oldest_]; }
  Token spelling(Token token) const {
    const auto at = static_cast<std::size_t>(token);
    return at < spellings_.size() ? spellings_[at] : token;
  }
  // Keys of the n-grams that end at text.back(), shortest first; returns how many fit into the text.
  std::size_t keys(std::span<const Token> text, Keys& keys) const;
  void follow(Place place, std::size_t length, std::span<const Token> query, std::int32_t max_chain,
              std::vector<Match>& matches);
  bool follows(const Line& line, Token token) const;
  static std::int64_t bytes_of(const Document& document);
  void shrink(Document& document);  // it is full
  Document& writable(Line& line);
  void index_last(DocumentId id);
  void forget_oldest();

  const std::vector<std::int32_t> lengths_;
  const std::int32_t max_ngram_;
  const std::int64_t max_tokens_;
  const std::vector<Token> spellings_;
  std::deque<Document> documents_;
  DocumentId oldest_ = 0;
  GramTable<Place> newest_;
  std::int64_t held_ = 0;
  std::int64_t bytes_ = 0;  // of documents
  std::int64_t indexed_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace agentkv
